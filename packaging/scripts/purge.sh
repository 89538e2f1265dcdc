[ "$1" = purge ] || exit 0

running=$(processes_of_jobs)
if [ -n "$running" ]; then
    echo "meshd: jobs still run, and /var/lib/meshd is kept (processes: $running)" >&2
    echo "meshd: purge again once they have ended: dpkg --purge meshd" >&2
    exit 1
fi
if [ -d /run/systemd/system ]; then
    systemctl stop meshd-jobs.service 2>/dev/null || true
    loginctl disable-linger meshd 2>/dev/null || true
fi
rm -rf /var/lib/meshd /etc/systemd/system/meshd.service.d/execution.conf
[ ! -d /etc/systemd/system/meshd.service.d ] || rmdir --ignore-fail-on-non-empty /etc/systemd/system/meshd.service.d
if [ -n "$(find /etc/meshd/ca -name '*.key' 2>/dev/null)" ]; then
    find /etc/meshd -mindepth 1 -maxdepth 1 ! -name ca -exec rm -rf {} +
    echo "meshd: /etc/meshd/ca is kept: it holds the private key of a mesh's authority. Remove it if that mesh is no more."
else
    rm -rf /etc/meshd
fi
