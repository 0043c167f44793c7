# Writes a file's bytes as C: cmake -DFILE=page.html -DNAME=page_html -DOUT=page.c -P embed_file.cmake
file(READ ${FILE} hex HEX)
string(LENGTH "${hex}" digits)
math(EXPR size "${digits} / 2")
string(REGEX REPLACE "(..)" "0x\\1," bytes "${hex}")
get_filename_component(name ${FILE} NAME)
file(WRITE ${OUT} "/* Generated from ${name} at build time. */
extern const unsigned char ${NAME}[];
extern const unsigned ${NAME}_len;
const unsigned char ${NAME}[] = {${bytes}0};
const unsigned ${NAME}_len = ${size};
")
