# Libraries for STATIC: one file that uses no library of the system.
#
# libmicrohttpd's archive is made with gnutls, for HTTPS; gnutls can't be linked from Debian, which has no archive of
# p11-kit. The page is plain HTTP: the functions that libmicrohttpd would call for HTTPS are stubs here that end the process,
# except the two that it calls at its start and end.
#
# glibc is linked too. It still looks names up in /etc/hosts and by DNS. Other sources of /etc/nsswitch.conf (mdns, ldap)
# would need libraries of exactly its own version.
foreach(library IN ITEMS ev hiredis uuid ssl crypto microhttpd)
  find_library(STATIC_${library} lib${library}.a REQUIRED)
endforeach()
find_program(NM nm REQUIRED)
execute_process(COMMAND ${NM} -u ${STATIC_microhttpd} OUTPUT_VARIABLE wanted ERROR_QUIET COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "gnutls_[a-z0-9_]+" wanted "${wanted}")
list(REMOVE_DUPLICATES wanted)
set(without "#include <stdlib.h>\n")
foreach(name IN LISTS wanted)
  if(name MATCHES "^gnutls_global_(de)?init$")
    string(APPEND without "int ${name}(void) { return 0; }\n")
  elseif(name STREQUAL "gnutls_malloc") # a pointer
    string(APPEND without "void *(*gnutls_malloc)(size_t) = malloc;\n")
  else()
    string(APPEND without "void ${name}(void) { abort(); }\n")
  endif()
endforeach()
file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/no_gnutls.c.new "${without}")
configure_file(${CMAKE_CURRENT_BINARY_DIR}/no_gnutls.c.new ${CMAKE_CURRENT_BINARY_DIR}/no_gnutls.c COPYONLY)
add_library(no_gnutls STATIC ${CMAKE_CURRENT_BINARY_DIR}/no_gnutls.c)
target_compile_options(no_gnutls PRIVATE -w -fno-lto)

# static_library(NAME HEADERS-OF LIBRARY ...): replaces a library that pkg-config would find.
function(static_library name of)
  add_library(static_${name} INTERFACE)
  target_include_directories(static_${name} SYSTEM INTERFACE ${${of}_INCLUDE_DIRS})
  target_link_libraries(static_${name} INTERFACE ${ARGN})
endfunction()
static_library(openssl OPENSSL ${STATIC_ssl} ${STATIC_crypto} dl Threads::Threads)
static_library(hiredis HIREDIS ${STATIC_hiredis})
static_library(uuid UUID ${STATIC_uuid})
static_library(microhttpd MICROHTTPD ${STATIC_microhttpd} no_gnutls Threads::Threads)
set(LIBEV_LIBRARY ${STATIC_ev} m)
set(OPENSSL static_openssl)
set(HIREDIS static_hiredis)
set(UUID static_uuid)
set(MICROHTTPD static_microhttpd)
add_compile_options(-fPIE)
add_link_options(-static-pie)
