# Functions of .ci/run and .ci/long. Both source this file and create the directory "$scratch".

heading() {
    printf '\n======== %s ========\n' "$*"
}

# can_install: true on Debian with the right to install packages.
can_install() {
    [ -e /etc/debian_version ] && [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null
}

# apt_install PACKAGE...: install Debian packages without starting their services; false if that is
# impossible. A temporary policy-rc.d prevents the start of services; an existing one is kept.
apt_install() (
    policy=/usr/sbin/policy-rc.d
    can_install || exit 1
    if [ ! -e "$policy" ]; then
        trap 'rm -f "$policy"' EXIT
        printf '#!/bin/sh\nexit 101\n' > "$policy"
        chmod +x "$policy"
    fi
    export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
    { apt-get update -q && apt-get install -q -y --no-install-recommends "$@"; } \
        > "$scratch/apt.txt" || { tail -n 20 "$scratch/apt.txt"; exit 1; }
)
