#!/bin/sh
# docker-entrypoint.sh [--test-conf | --advise TIME | --advise-from -] [FILE] [--directive value ...]: becomes
# lockkeeper, as the image's first process, so that signals reach it. Without FILE its configuration is LOCKKEEPER_CONF, or the
# package's in /etc. LOCKKEEPER_ARGS has directives for places without a command line. Its words have blanks between them, and
# no quotes.
#
# The addresses of a container are all its own: --bind opens the port to all clients that docker run -p lets in. So does
# --protected-mode no, as in Redis's own image.
set -eu
case ${1-} in
--version | -v | --help | -h) exec lockkeeper "$1" ;;
esac
first=
case ${1-} in
--test-conf)
    first=$1
    shift
    ;;
--advise | --advise-from)
    first="$1 ${2-}"
    shift $(($# > 1 ? 2 : 1))
    ;;
esac
file=${LOCKKEEPER_CONF:-/etc/lockkeeper/lockkeeper.conf}
case ${1-} in
"" | --*) ;;
*)
    file=$1
    shift
    ;;
esac
set -f # patterns are for lockkeeper
exec lockkeeper $first "$file" --bind "*" "-::*" --protected-mode no ${LOCKKEEPER_ARGS-} "$@"
