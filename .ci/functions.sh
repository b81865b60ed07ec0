# Functions of .ci/run and .ci/long, which read this file. They make the directory "$scratch".

heading() {
    printf '\n======== %s ========\n' "$*"
}

# Whether this is a Debian on which packages may be installed.
can_install() {
    [ -e /etc/debian_version ] && [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null
}

# apt_install PACKAGE...: packages of Debian, installed without starting a service; false where they
# cannot be. It takes away the policy for services that it made, and leaves one that was there.
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
