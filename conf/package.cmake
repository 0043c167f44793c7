# The files to install, and the Debian package (cpack -G DEB in the build folder). lintian reports nothing but hints for it
# (tests/integration/test_package.py).
include(GNUInstallDirs)

set(CONF ${CMAKE_CURRENT_LIST_DIR})
# Maintainers set their name as for Debian's own tools.
set(CPACK_PACKAGE_CONTACT "the lockkeeper authors <maintainers@lockkeeper.example>")
if(DEFINED ENV{DEBEMAIL})
  set(CPACK_PACKAGE_CONTACT "$ENV{DEBEMAIL}")
  if(DEFINED ENV{DEBFULLNAME})
    set(CPACK_PACKAGE_CONTACT "$ENV{DEBFULLNAME} <$ENV{DEBEMAIL}>")
  endif()
endif()
configure_file(${CONF}/debian/changelog.in ${CMAKE_CURRENT_BINARY_DIR}/changelog @ONLY)
set(CONF_MAN ${CMAKE_CURRENT_BINARY_DIR}/lockkeeper.conf.5)
add_custom_command(
  OUTPUT ${CONF_MAN}
  COMMAND awk -f ${CMAKE_CURRENT_SOURCE_DIR}/scripts/conf_man.awk ${CONF}/lockkeeper.conf > ${CONF_MAN}
  DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/scripts/conf_man.awk ${CONF}/lockkeeper.conf
  COMMENT "Writing lockkeeper.conf(5)"
  VERBATIM)
# Debian requires compressed manual pages and changelog, with the same bytes in each build.
set(MAN_PAGES)
foreach(page ${CONF}/lockkeeper.1 ${CONF_MAN} ${CMAKE_CURRENT_BINARY_DIR}/changelog)
  get_filename_component(name ${page} NAME)
  add_custom_command(
    OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/${name}.gz
    COMMAND gzip -9nc ${page} > ${CMAKE_CURRENT_BINARY_DIR}/${name}.gz
    DEPENDS ${page}
    VERBATIM)
  list(APPEND MAN_PAGES ${CMAKE_CURRENT_BINARY_DIR}/${name}.gz)
endforeach()
add_custom_target(man ALL DEPENDS ${MAN_PAGES})

install(TARGETS lockkeeper RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/lockkeeper.1.gz DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES ${CONF_MAN}.gz DESTINATION ${CMAKE_INSTALL_MANDIR}/man5)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/changelog.gz DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT package EXCLUDE_FROM_ALL)
install(FILES ${CONF}/standalone.conf ${CONF}/cluster.conf ${CONF}/sentinel.conf ${CONF}/embedded.conf ${CONF}/quorum.conf
              ${CMAKE_CURRENT_SOURCE_DIR}/README.md ${CMAKE_CURRENT_SOURCE_DIR}/SECURITY.md
        DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY ${CONF}/presets ${CONF}/prometheus ${CONF}/grafana DESTINATION ${CMAKE_INSTALL_DATADIR}/lockkeeper)
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING PATTERN "*.md")
# The copyright file, with authors and licence, under Debian's name for it.
file(READ ${CMAKE_CURRENT_SOURCE_DIR}/LICENSE LICENCE_TEXT)
string(REGEX REPLACE "^.*(Redistribution and use in .*)\n$" " \\1" LICENCE_TEXT "${LICENCE_TEXT}")
string(REPLACE "\n" "\n " LICENCE_TEXT "${LICENCE_TEXT}")
string(REPLACE "\n \n" "\n .\n" LICENCE_TEXT "${LICENCE_TEXT}")
configure_file(${CONF}/debian/copyright.in ${CMAKE_CURRENT_BINARY_DIR}/copyright @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/copyright DESTINATION ${CMAKE_INSTALL_DOCDIR})
# Paths of a package, not of a prefix: the unit contains them.
install(FILES ${CONF}/lockkeeper.conf DESTINATION /etc/lockkeeper COMPONENT package EXCLUDE_FROM_ALL)
install(FILES ${CONF}/debian/lockkeeper.logrotate DESTINATION /etc/logrotate.d RENAME lockkeeper COMPONENT package
        EXCLUDE_FROM_ALL)
install(FILES ${CONF}/lockkeeper.service ${CONF}/lockkeeper.socket DESTINATION /lib/systemd/system COMPONENT package EXCLUDE_FROM_ALL)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "proxy for Redis that makes legacy locks safe")
set(CPACK_PACKAGE_DESCRIPTION
    "Stands between applications and Redis or Redis Cluster and turns the lock
commands it recognises (SETNX, SET NX, EXPIRE, DEL and so on) into scripts
that check whose lock it is. Applications are not changed: they connect to
the proxy's port instead of Redis's.")
set(CPACK_COMPONENTS_ALL Unspecified package)
set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DEPENDS adduser)
set(CPACK_DEBIAN_PACKAGE_SUGGESTS redis-server)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA
    ${CONF}/debian/postinst ${CONF}/debian/prerm ${CONF}/debian/postrm ${CONF}/debian/conffiles)
include(CPack)
