# The processes of jobs: each has its unit's directory in its environment.
processes_of_jobs() {
    grep -lsz '^MESHD_UNIT_DIR=/var/lib/meshd/' /proc/[0-9]*/environ | tr -dc '0-9\n' | tr '\n' ' '
}
