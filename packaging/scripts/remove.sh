# The process that holds the control group of jobs has no other purpose. Without its unit's file systemd would end the
# jobs with it.
running=$(processes_of_jobs)
if [ -z "$running" ]; then
    systemctl stop meshd-jobs.service
else
    echo "meshd: jobs go on (processes: $running). \`systemctl kill meshd-jobs\` ends them." >&2
    echo "meshd: once they have ended, \`systemctl stop meshd-jobs\` ends the last process." >&2
fi
