# Writes the table of Lua scripts as C: cmake -DFOLDER=... -DCONSTANTS=x.h -DNAMES=a,b -DOUT=table.c -P embed_lua.cmake
#
# A script's text is its own file, in which some lines are replaced by other files:
#
#   --@common      arguments.lua and common.lua
#   --@alone       nothing
#   --@list        list.lua
#   --@waits       waits.lua
#   --@text        text.lua
#   --@compare     compare.lua
#   --@usual       usual.lua
#   --@unfinished  unfinished.lua
#   --@tell        tell.lua
#   --@hash        hash.lua
#
# A file with none of the first two lines gets arguments.lua and common.lua in front. Lines that are
# comments are left out, and functions that the script does not use: Redis makes every function anew for each call, which was a
# fifth of a call's time. The names of the enum in CONSTANTS are
# replaced by their values. The SHA1 is that of exactly the resulting bytes. The table also has the bytes of a call by SHA1 up to
# the keys, of which there are two.
string(REPLACE "," ";" names "${NAMES}")
set(text "/* Generated from scripts/lua/ at build time. */\n#include \"proxy/upstream/script.h\"\n\n")
set(rows "")
file(READ ${FOLDER}/arguments.lua arguments HEX)
file(READ ${FOLDER}/common.lua functions HEX)
set(common "${arguments}${functions}")
string(HEX "--@common\n" mark)
string(HEX "--@alone\n" alone_mark)
file(READ ${FOLDER}/list.lua list HEX)
string(HEX "--@list\n" list_mark)
file(READ ${FOLDER}/waits.lua waits HEX)
string(HEX "--@waits\n" waits_mark)
file(READ ${FOLDER}/text.lua short HEX)
string(HEX "--@text\n" short_mark)
file(READ ${FOLDER}/compare.lua compare HEX)
string(HEX "--@compare\n" compare_mark)
file(READ ${FOLDER}/usual.lua usual HEX)
string(HEX "--@usual\n" usual_mark)
file(READ ${FOLDER}/unfinished.lua unfinished HEX)
string(HEX "--@unfinished\n" unfinished_mark)
file(READ ${FOLDER}/tell.lua tell HEX)
string(HEX "--@tell\n" tell_mark)
file(READ ${FOLDER}/hash.lua hash HEX)
string(HEX "--@hash\n" hash_mark)

# leave_out(NAME): leaves out of the script in the variable NAME, which is in hex, comments, and top functions whose names are nowhere
# else.
string(HEX "\nlocal function " function_mark)
string(HEX "\nend\n" end_mark)
string(LENGTH "${function_mark}" mark_len)
set(no_name "(0.|1.|2.|3[a-f]|40|5[b-e]|60|7[b-f])") # a byte that is no part of a name
function(leave_out variable)
  string(REGEX REPLACE "0a(20)*2d2d([1-9a-f].|0[0-9b-f])*" "" hex "0a${${variable}}")
  set(changed TRUE)
  while(changed)
    set(changed FALSE)
    set(before "")
    string(FIND "${hex}" "${function_mark}" at)
    while(at GREATER_EQUAL 0)
      string(SUBSTRING "${hex}" 0 ${at} text)
      string(APPEND before "${text}")
      string(SUBSTRING "${hex}" ${at} -1 hex)
      string(FIND "${hex}" "28" name_end)
      math(EXPR name_len "${name_end} - ${mark_len}")
      string(SUBSTRING "${hex}" ${mark_len} ${name_len} name)
      string(FIND "${hex}" "${end_mark}" stop)
      math(EXPR stop "${stop} + 8") # behind the word, before its newline
      string(SUBSTRING "${hex}" 0 ${stop} block)
      string(SUBSTRING "${hex}" ${stop} -1 hex)
      if("${before}${hex}" MATCHES "${no_name}${name}${no_name}")
        string(APPEND before "${block}")
      else()
        set(changed TRUE)
      endif()
      string(FIND "${hex}" "${function_mark}" at)
    endwhile()
    set(hex "${before}${hex}")
  endwhile()
  set(${variable} "${hex}" PARENT_SCOPE)
endfunction()

file(STRINGS ${CONSTANTS} constants REGEX "^    [A-Z_]+ = [0-9]+")
foreach(name ${names})
  file(READ ${FOLDER}/${name}.lua own HEX)
  string(REPLACE "${mark}" "${common}" hex "${own}")
  string(REPLACE "${alone_mark}" "" hex "${hex}")
  if(hex STREQUAL own)
    set(hex "${common}${own}")
  endif()
  string(REPLACE "${usual_mark}" "${usual}" hex "${hex}") # first: it has a line for text.lua
  string(REPLACE "${tell_mark}" "${tell}" hex "${hex}") # before waits.lua, for which it has a line
  string(REPLACE "${unfinished_mark}" "${unfinished}" hex "${hex}")
  string(REPLACE "${list_mark}" "${list}" hex "${hex}")
  string(REPLACE "${waits_mark}" "${waits}" hex "${hex}")
  string(REPLACE "${short_mark}" "${short}" hex "${hex}")
  string(REPLACE "${compare_mark}" "${compare}" hex "${hex}")
  string(REPLACE "${hash_mark}" "${hash}" hex "${hex}")
  foreach(constant ${constants})
    string(REGEX MATCH "([A-Z_]+) = ([0-9]+)" row "${constant}")
    string(HEX "${CMAKE_MATCH_1}" constant_name)
    string(HEX "${CMAKE_MATCH_2}" constant_value)
    string(REPLACE "${constant_name}" "${constant_value}" hex "${hex}")
  endforeach()
  leave_out(hex)
  string(LENGTH "${hex}" digits)
  math(EXPR size "${digits} / 2")
  string(REGEX REPLACE "(..)" "0x\\1," bytes "${hex}")
  # The bytes as a file again, for the SHA1.
  string(REGEX REPLACE "(..)" "\\\\x\\1" escaped "${hex}")
  # In two halves: the system takes no argument of 128 KiB.
  math(EXPR half "${size} / 2 * 4")
  string(SUBSTRING "${escaped}" 0 ${half} first)
  string(SUBSTRING "${escaped}" ${half} -1 second)
  execute_process(COMMAND printf "${first}" OUTPUT_FILE ${OUT}.first)
  execute_process(COMMAND printf "${second}" OUTPUT_FILE ${OUT}.second)
  execute_process(COMMAND ${CMAKE_COMMAND} -E cat ${OUT}.first ${OUT}.second OUTPUT_FILE ${OUT}.${name}.lua
                  RESULT_VARIABLE failed)
  file(SHA1 ${OUT}.${name}.lua sha1)
  file(SIZE ${OUT}.${name}.lua written)
  if(failed OR NOT written EQUAL size)
    message(FATAL_ERROR "cannot write the text of ${name}.lua")
  endif()
  string(APPEND text "static const unsigned char ${name}_source[] = {${bytes}0};\n")
  string(APPEND rows "    {\"${name}\", (const char *)${name}_source, ${size}, \"${sha1}\",\n     \"$7\\r\\nEVALSHA\\r\\n$40\\r\\n${sha1}\\r\\n$1\\r\\n2\\r\\n\"},\n")
endforeach()
string(APPEND text "\nconst struct script script_table[SCRIPT_TOTAL] = {\n${rows}};\n")
file(WRITE ${OUT} "${text}")
