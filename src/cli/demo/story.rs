//! What the demo types, and what its nodes run: scripts, playbooks, and a stand-in where there is no Ansible.

/// Shows a command and runs it.
const TYPE: &str = r#"
type() { printf '\n$ %s\n' "$*"; "$@"; }
say() { printf '\n# %s\n' "$*"; }
"#;

const FIRST: &str = r#"
say 'The controller found its instances by itself: control, which also runs jobs, and the two behind hop.'
type meshctl traceroute e1 || exit
type meshctl instance list || exit
say 'A group of two of them, and five playbooks for it. The controller chooses the node of each.'
type meshctl group create east --list e1,e2 || exit
for n in 1 2 3 4 5; do
    printf '$ meshctl job run project -p site.yml --group east --name hello-%s --detach\n' $n
    meshctl job run project -p site.yml --group east --name hello-$n --detach >/dev/null 2>&1 || exit
done
type meshctl job wait 1 2 3 4 5
type meshctl job list
type meshctl job output 1 --text
say 'A longer one, which may run again if its node is lost.'
type meshctl job run project -p long.yml --group east --name long --retry 1 --detach
"#;

const THEN: &str = r#"
say "$LOST is gone, with all that ran there. The controller waits: the job could still run. An operator who knows says so."
type meshctl instance remove "$LOST" --dead || exit
type meshctl job wait "$JOB"
type meshctl job output "$JOB" --text
type meshctl job list --limit 1
"#;

/// The commands up to the job whose node is lost.
pub(super) fn first() -> String {
    format!("{TYPE}{FIRST}")
}

/// The commands after the loss of the node `$LOST` with the job `$JOB`.
pub(super) fn then() -> String {
    format!("{TYPE}{THEN}")
}

/// Environment variables of all that jobs run: the node, for the playbook, and the mesh, for the clean-up.
pub(super) const NODE: &str = "DEMO_NODE";
pub(super) const MESH: &str = "DEMO_MESH";

pub(super) const SITE: &str = "\
- hosts: all
  gather_facts: false
  tasks:
    - name: Say where this runs
      ansible.builtin.debug:
        msg: Hello from {{ lookup('env', 'DEMO_NODE') }}, through the mesh
";

pub(super) const LONG: &str = "\
- hosts: all
  gather_facts: false
  tasks:
    - name: Take a while
      ansible.builtin.command: sleep 2
      changed_when: false
    - name: Say where this ran
      ansible.builtin.debug:
        msg: Done on {{ lookup('env', 'DEMO_NODE') }}
";

/// Names the interpreter that runs Ansible itself, because one that Ansible discovers may be a broken shim.
pub(super) const INVENTORY: &str =
    "localhost ansible_connection=local ansible_python_interpreter='{{ ansible_playbook_python }}'\n";

/// Stands in for ansible-runner: reads a job's stream, and says what its playbook would say.
pub(super) const STAND_IN: &str = r#"
case "$*" in *--worker-info*)
    printf '{"cpu_count":2,"mem_in_bytes":8589934592,"runner_version":"2.4.0","uuid":"%s","errors":[]}\n' "$DEMO_NODE"
    exit ;;
esac
message="Hello from $DEMO_NODE, through the mesh" pause=0
while IFS= read -r line; do
    case $line in
    *'"playbook":"long.yml"'*) message="Done on $DEMO_NODE" pause=2 ;;
    *'"eof":true}' | *'"eof": true}') break ;;
    esac
done
counter=0
say() {
    counter=$((counter + 1))
    printf '{"uuid":"%s-%s","counter":%s,"event":"%s","stdout":"%s","event_data":%s}\n' $$ $counter $counter "$1" "$2" "$3"
}
stars='*****************************************'
printf '{"status":"starting","command":["ansible-playbook"]}\n{"status":"running"}\n'
say playbook_on_play_start "\r\nPLAY [all] $stars" '{}'
say playbook_on_task_start "\r\nTASK [Say where this runs] $stars" '{}'
sleep $pause
say runner_on_ok "\u001b[0;32mok: [localhost] => $message\u001b[0m" '{"host":"localhost"}'
say playbook_on_stats "\r\nPLAY RECAP $stars\r\nlocalhost : ok=1 changed=0 unreachable=0 failed=0" \
    '{"processed":{"localhost":1},"ok":{"localhost":1}}'
printf '{"status":"successful"}\n{"eof":true}\n'
"#;
