#!/bin/sh
# install.sh [--missing] build|compile|package|test|integration|newcomer|static|root|bench|clients|suite ...: installs the
# Debian (12 or 13) packages that the purpose needs and this machine lacks; --missing only lists them. "compile" is "build"
# without Redis, for machines that have one.
#
# It asks nothing, and prints nothing unless it fails. If nothing is missing, it changes nothing and needs no rights. Services
# of newly installed packages (Redis or Valkey on port 6379, haproxy, nutcracker, Prometheus) are neither started nor enabled;
# services that were there before stay as they are.
set -eu

need="gcc libc6-dev make cmake pkg-config libhiredis-dev libev-dev libssl-dev uuid-dev libmicrohttpd-dev"
need="$need python3"
only_say=
if [ "${1-}" = --missing ]; then
    only_say=yes
    shift
fi
[ "$*" = compile ] || need="$need redis-server redis-tools"
of_tests="ninja-build libcmocka-dev liblua5.1-0-dev python3-pytest python3-pytest-xdist python3-redis netcat-openbsd openssl"
of_tests="$of_tests dpkg-dev file groff-base python3-yaml"
want=
for purpose in "$@"; do
    case $purpose in
    build | compile) ;;
    package) need="$need dpkg-dev file" ;;
    test)
        want="$want prometheus python3-django-redis python3-rq python3-celery" # promtool; what guides are about
        need="$need $of_tests spin"
        want="$want clang libclang-rt-dev clang-format valgrind chromium iproute2"
        want="$want clang-tidy lintian haproxy"
        ;;
    integration) # the tests alone, without what measures them; before each server that the release has
        need="$need $of_tests iproute2 procps"
        want="$want valkey-server prometheus"
        ;;
    newcomer) need="nodejs php-cli php-redis redis-tools" ;; # what run.sh does not install: workers
    static) want="$want npm" ;;
    root) need="debootstrap mount util-linux" ;; # a second root, for the other release
    suite) need="$need tcl dpkg-dev" ;; # Redis's own tests, from Debian's source package
    bench) want="$want nutcracker haproxy valgrind strace" ;;
    clients)
        need="$need python3-redis"
        want="$want nodejs npm php-cli php-redis php-predis php-symfony-lock ruby ruby-redis libredis-perl"
        want="$want libredis-fast-perl golang-go golang-github-gomodule-redigo-dev golang-gopkg-redis.v5-dev"
        want="$want lua5.1 lua-redis php-illuminate-cache php-illuminate-redis python3-django-redis python3-rq"
        want="$want python3-celery ruby-sidekiq"
        ;;
    *)
        echo "install.sh: '$purpose': expected build, compile, package, test, integration, newcomer, static, root, bench, clients or suite" >&2
        exit 1
        ;;
    esac
done

# Another package may provide the wanted one: pkgconf provides pkg-config, and some packages of nodejs contain npm.
there() {
    case $1 in
    pkg-config | npm) ! command -v "$1" >/dev/null 2>&1 || return 0 ;;
    esac
    dpkg-query -W -f '${Status}\n' "$1" 2>/dev/null | grep -q '^install ok installed$'
}

absent() {
    list=
    for package in "$@"; do
        there "$package" || case " $list " in *" $package "*) ;; *) list="$list $package" ;; esac
    done
    echo "$list"
}

missing=$(absent $need)
wanted=$(absent $want)
[ -n "$missing$wanted" ] || exit 0
if [ -n "$only_say" ]; then
    echo "$missing$wanted" | sed 's/^ *//'
    exit 0
fi

if ! command -v apt-get >/dev/null 2>&1; then
    echo "install.sh: this is no Debian; install these, or what they are called here:$missing$wanted" >&2
    exit 1
fi
as_root=
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null 2>&1; then
        echo "install.sh: run as root, or install these:$missing$wanted" >&2
        exit 1
    fi
    as_root=sudo
fi

log=$(mktemp "${TMPDIR:-/tmp}/lockkeeper-install.XXXXXX")
services=

# Services of new packages must not start: systemd's units are masked meanwhile, and RUNLEVEL=1 has the same effect for
# sysvinit.
finish() {
    rm -f "$log"
    [ -z "$services" ] || $as_root systemctl unmask --runtime --quiet $services >/dev/null 2>&1 || true
}
trap finish EXIT
if [ -d /run/systemd/system ]; then
    for service in redis-server valkey-server nutcracker haproxy prometheus; do
        case " $missing $wanted " in *" $service "*) services="$services $service.service" ;; esac
    done
    [ -z "$services" ] || $as_root systemctl mask --runtime --quiet $services >/dev/null 2>&1 || true
fi

install() {
    $as_root env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -q --no-install-recommends \
        -o DPkg::Lock::Timeout=120 "$@" >"$log" 2>&1 </dev/null
}

# The package lists are only fetched if they are missing or too old for these packages. Packages in `wanted` may be missing in
# the end, since a release may lack them: their users do without them, and say so.
if ! install $missing $wanted; then
    $as_root apt-get update -q >"$log" 2>&1 </dev/null || {
        cat "$log" >&2
        echo "install.sh: apt-get update failed" >&2
        exit 1
    }
    if ! install $missing $wanted; then
        [ -z "$missing" ] || install $missing || {
            cat "$log" >&2
            echo "install.sh: could not install$missing" >&2
            exit 1
        }
        for package in $wanted; do
            install "$package" || echo "install.sh: could not install $package; going on without it" >&2
        done
    fi
fi
if [ -n "$services" ]; then
    $as_root systemctl unmask --runtime --quiet $services >/dev/null 2>&1 || true
    $as_root systemctl disable --quiet $services >/dev/null 2>&1 || true
fi
