#!/usr/bin/env bash
# other_debian.sh: builds and tests on the other supported release of Debian: 13 (trixie, with Redis 8 and Valkey 8), or, if
# this machine is a 13, 12 (bookworm, with Redis 7.0). It runs 'scripts/test.sh newcomer servers' in a second root,
# build-debian/. debootstrap makes the root anew each time, from the mirror that this machine's apt uses. With --prepare it
# makes the root alone, for the next run: beside other work, since it mostly waits for packages.
#
# Needs root, and a machine that permits chroot and mounting /proc; otherwise it prints what is missing, and fails. The last
# line is 'N passed, N failed'; the exit status is 0 if nothing failed.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
second=$root/build-debian
devices="null zero full random urandom tty"

die() {
    echo "other_debian.sh: $1" >&2
    echo "0 passed, 1 failed"
    exit 1
}

# ---- inside a mount namespace, if the machine permits one ----------------------------------------------------------

# Mounts what processes expect of a system. Devices that debootstrap could not create, or that can't be opened there (nodev),
# come from this machine.
furnish() {
    mount --bind "$second" "$second" 2>/dev/null || true # for tests that mount something: / is a mount then
    mount -t proc proc "$second/proc" 2>/dev/null || { [ "$1" = shared ] && mount --bind /proc "$second/proc"; } ||
        die "/proc can be mounted in a second root neither anew nor from here: run it where root may mount"
    mkdir -p "$second/dev/shm" "$second/dev/pts" "$second/sys"
    for device in $devices; do
        if ! { : <"$second/dev/$device"; } 2>/dev/null && [ "$device" != tty ]; then
            rm -f "$second/dev/$device"
            touch "$second/dev/$device"
            mount --bind "/dev/$device" "$second/dev/$device" || die "/dev/$device can't be had in a second root"
        fi
    done
    # Only a few tests use these, and can do without.
    mount -t sysfs sysfs "$second/sys" 2>/dev/null || true
    mount -t tmpfs tmpfs "$second/dev/shm" 2>/dev/null || true
    mount -t devpts devpts "$second/dev/pts" 2>/dev/null || true
}

run_inside() {
    furnish "$1"
    # The environment must contain nothing of this machine's release.
    env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 ${http_proxy:+"http_proxy=$http_proxy"} \
        ${PYTEST_ADDOPTS:+"PYTEST_ADDOPTS=$PYTEST_ADDOPTS"} ${LOCKKEEPER_SEED:+"LOCKKEEPER_SEED=$LOCKKEEPER_SEED"} \
        LOCKKEEPER_FRESH=yes chroot "$second" /src/scripts/test.sh newcomer servers
}

if [ "${1:-}" = --inside ]; then
    run_inside "$2"
    exit
fi

# ---- the root -----------------------------------------------------------------------------------------------------

[ "$(id -u)" -eq 0 ] || die "only root can make a second root: run it as root"
command -v chroot >/dev/null && chroot / true 2>/dev/null || die "there is no chroot here, or root may not use it"
"$root/scripts/install.sh" root || die "debootstrap can't be installed"

. /etc/os-release
case ${VERSION_CODENAME:-} in
trixie) other=bookworm ;;
*) other=trixie ;;
esac

# The mirror of this machine's packages also has the other release's.
mirror=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Identifier: Packages' 2>/dev/null |
    awk -v name="${VERSION_CODENAME:-stable}" '($2 == name || $2 == "stable" || $2 == "oldstable") && $3 == "main" { print $1; exit }')
[ -n "$mirror" ] || die "apt's sources name no mirror with Debian's packages"
if [ -z "${http_proxy:-}" ]; then
    eval "$(apt-config shell http_proxy Acquire::http::Proxy)"
    [ -z "${http_proxy:-}" ] || export http_proxy
fi

unmount() {
    local place
    for place in proc sys dev/shm dev/pts $(printf 'dev/%s ' $devices); do
        while mountpoint -q "$second/$place" 2>/dev/null; do
            umount "$second/$place" 2>/dev/null || umount -l "$second/$place" || break
        done
    done
}

remove() {
    unmount
    rm -rf --one-file-system "$second"
}

log=$(mktemp "${TMPDIR:-/tmp}/lockkeeper-debian.XXXXXX")
trap 'unmount; rm -f "$log"' EXIT

# If device nodes can't be created: debootstrap binds them when it believes to run in a container.
bootstrap() {
    local more=()
    remove
    mkdir -p "$second"
    mknod "$second/probe" c 1 3 2>/dev/null && { : >"$second/probe"; } 2>/dev/null || more=(env container=lxc)
    rm -f "$second/probe"
    ${more[@]+"${more[@]}"} timeout 900 debootstrap --variant=minbase --include=ca-certificates "$other" "$second" "$mirror" >"$log" 2>&1
}

prepare() {
    if ! bootstrap; then
        # An update of the old release contains the keys of the new one.
        DEBIAN_FRONTEND=noninteractive apt-get install -y -q debian-archive-keyring >/dev/null 2>&1 </dev/null
        bootstrap || {
            tail -n 30 "$log" "$second/debootstrap/debootstrap.log" >&2 2>/dev/null
            die "debootstrap failed"
        }
    fi
    # The second root uses this machine's network settings for apt.
    apt-config dump | grep -E '^Acquire::(http|https|Retries|ForceIPv4)' >"$second/etc/apt/apt.conf.d/90network" || true
    [ ! -e /etc/ssl/certs/ca-certificates.crt ] || cp -L /etc/ssl/certs/ca-certificates.crt "$second/etc/ssl/certs/"
    printf '#!/bin/sh\nexit 101\n' >"$second/usr/sbin/policy-rc.d" # no service starts there
    chmod 755 "$second/usr/sbin/policy-rc.d"
    touch "$second/prepared"
}

SECONDS=0
echo "== $other in $second"
if [ "${1:-}" = --prepare ]; then
    prepare
    exit
fi
[ -e "$second/prepared" ] || prepare
rm -f "$second/prepared"
mkdir "$second/src"
tar -C "$root" --exclude='./build*' --exclude=./.git --exclude='*/node_modules' -cf - . | tar -C "$second/src" --no-same-owner -xf - ||
    die "the sources can't be copied"
echo "== $other: $SECONDS s"

if unshare --mount --pid --fork mount -t proc proc "$second/proc" 2>/dev/null; then
    # The namespace ends all processes and mounts that are left.
    unshare --mount --pid --fork --kill-child "${BASH_SOURCE[0]}" --inside own
else
    "${BASH_SOURCE[0]}" --inside shared
fi
status=$?
[ "$status" -ne 0 ] || remove
exit "$status"
