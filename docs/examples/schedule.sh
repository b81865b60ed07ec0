#!/bin/sh
# Write entries of RedBeat with redis-cli. Names and tasks without quotes and backslashes.
#
#   schedule.sh save NAME TASK SECONDS
#   schedule.sh remove NAME
#   schedule.sh problem NAME
set -eu

prefix=${REDBEAT_KEY_PREFIX:-redbeat:}

# Ends the script when Redis answers with an error.
redis() {
    reply=$(redis-cli -u "${REDIS_URL:-redis://localhost:6379/1}" "$@")
    case $reply in
        *ERR* | *NOAUTH* | *NOPERM* | *WRONGTYPE* | *OOM* | *READONLY*) echo "$reply" >&2; exit 1 ;;
    esac
    printf '%s\n' "$reply"
}

save() {
    definition=$(printf '{"name": "%s", "task": "%s", "schedule": {"__type__": "interval", "every": %s}}' \
        "$1" "$2" "$3")
    redis HSET "$prefix$1" definition "$definition"  # first what it is,
    redis ZADD "$prefix:schedule" 0 "$prefix$1"      # then that there is something to look at
    redis PUBLISH "$prefix:wakeup" due
}

remove() {
    redis ZREM "$prefix:schedule" "$prefix$1"
    redis DEL "$prefix$1"
}

case $1 in
    save) save "$2" "$3" "$4" > /dev/null ;;
    remove) remove "$2" > /dev/null ;;
    problem) redis HGET ".$prefix:quarantine" "$prefix$2" ;;
esac
