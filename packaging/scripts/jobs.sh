# The processes of jobs. Each is in a control group that systemd keeps for the daemon and its jobs, whatever it has done to
# its environment. Others are found by the directory of their unit there, if they are of the user to whom the data belong
# (all users, if that is root) and the unit exists: anybody can put a name into an environment.
processes_of_jobs() {
    owner=$(stat -c %u /var/lib/meshd 2>/dev/null) || owner=
    holder=$(systemctl show --property=MainPID --value meshd-jobs.service 2>/dev/null) || holder=
    {
        grep -lsE ':/system\.slice/meshd(-jobs)?\.service(/|$)' /proc/[0-9]*/cgroup || true
        for environment in $(grep -lsz '^MESHD_UNIT_DIR=/var/lib/meshd/' /proc/[0-9]*/environ); do
            unit=$(tr '\0' '\n' 2>/dev/null <"$environment" | sed -n 's/^MESHD_UNIT_DIR=//p' | head -n 1)
            case "$unit" in *..*) continue ;; esac
            user=$(stat -c %u "${environment%/environ}" 2>/dev/null) || continue
            [ "$owner" = 0 ] || [ "$user" = "$owner" ] || continue
            [ ! -f "$unit/status" ] || echo "$environment"
        done
        # Without control groups of its own: all that its user does. What has ended, and is only waited for, has no program.
        [ -z "$owner" ] || [ "$owner" = 0 ] || [ -d /run/systemd/system ] ||
            find /proc -maxdepth 1 -name '[0-9]*' -user "$owner" -exec test -e '{}/exe' ';' -print
    } | tr -dc '0-9\n' | sort -un | grep -vx "${holder:-0}" | tr '\n' ' '
}
