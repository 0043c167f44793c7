#!/usr/bin/env bash
# other_debian.sh: builds and tests on the other one of the two releases of Debian that are supported: 13 (trixie, with
# Redis 8 and Valkey 8), or 12 (bookworm, with Redis 7.0) where this machine is a 13. That is 'scripts/test.sh newcomer servers' in
# a second root, build-debian/, which debootstrap makes anew each time from where this machine's apt gets its packages.
#
# Needs root, and a machine that lets root chroot and mount /proc: it says so where one of these is missing, and fails.
# The last line is 'N passed, N failed'; the exit status is 0 if nothing failed.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
second=$root/build-debian
devices="null zero full random urandom tty"

die() {
    echo "other_debian.sh: $1" >&2
    echo "0 passed, 1 failed"
    exit 1
}

# ---- inside of mounts of their own, if the machine has such ------------------------------------------------------

# What a process expects of a system. Devices that debootstrap could not make, or that can't be opened there (nodev), are
# this machine's.
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
    # What few tests want, and can do without.
    mount -t sysfs sysfs "$second/sys" 2>/dev/null || true
    mount -t tmpfs tmpfs "$second/dev/shm" 2>/dev/null || true
    mount -t devpts devpts "$second/dev/pts" 2>/dev/null || true
}

run_inside() {
    furnish "$1"
    # Who reads its environment there finds nothing of this release's.
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

# Where apt has this release's own packages from is where the other's are, too.
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

# Where nodes of devices can't be made it binds them if it takes this for a container.
bootstrap() {
    local more=()
    remove
    mkdir -p "$second"
    mknod "$second/probe" c 1 3 2>/dev/null && { : >"$second/probe"; } 2>/dev/null || more=(env container=lxc)
    rm -f "$second/probe"
    ${more[@]+"${more[@]}"} timeout 900 debootstrap --variant=minbase --include=ca-certificates "$other" "$second" "$mirror" >"$log" 2>&1
}

SECONDS=0
echo "== $other in $second"
if ! bootstrap; then
    # The keys of a new release come with an update of the old one.
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q debian-archive-keyring >/dev/null 2>&1 </dev/null
    bootstrap || {
        tail -n 30 "$log" "$second/debootstrap/debootstrap.log" >&2 2>/dev/null
        die "debootstrap failed"
    }
fi
# What this machine's apt knows of its network holds for the other's.
apt-config dump | grep -E '^Acquire::(http|https|Retries|ForceIPv4)' >"$second/etc/apt/apt.conf.d/90network" || true
[ ! -e /etc/ssl/certs/ca-certificates.crt ] || cp -L /etc/ssl/certs/ca-certificates.crt "$second/etc/ssl/certs/"
printf '#!/bin/sh\nexit 101\n' >"$second/usr/sbin/policy-rc.d" # no service starts there
chmod 755 "$second/usr/sbin/policy-rc.d"
mkdir "$second/src"
tar -C "$root" --exclude='./build*' --exclude=./.git --exclude='*/node_modules' -cf - . | tar -C "$second/src" --no-same-owner -xf - ||
    die "the sources can't be copied"
echo "== $other: $SECONDS s"

if unshare --mount --pid --fork mount -t proc proc "$second/proc" 2>/dev/null; then
    # Whatever is left running, or mounted, ends with it.
    unshare --mount --pid --fork --kill-child "${BASH_SOURCE[0]}" --inside own
else
    "${BASH_SOURCE[0]}" --inside shared
fi
status=$?
[ "$status" -ne 0 ] || remove
exit "$status"
