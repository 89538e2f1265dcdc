"""`meshctl graph` on real nodes."""

import subprocess
import xml.etree.ElementTree as xml

from mesh import MESHCTL


def meshctl(node, *args):
    done = subprocess.run([MESHCTL, "--socket", node.socket, *args], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done
    return done.stdout


def test_a_graph_in_three_notations(line):
    control = line["control"]
    dot = meshctl(control, "graph")
    assert dot == meshctl(control, "graph", "--dot") and dot.startswith("graph mesh {\n"), dot
    assert '"control" -- "hop";' in dot and '"execution" -- "hop";' in dot, dot
    mermaid = meshctl(control, "graph", "--mermaid").splitlines()
    assert mermaid == ["graph LR", '  n0["control"]', '  n1["execution"]', '  n2["hop"]', "  n0 --- n2", "  n1 --- n2"]
    picture = xml.fromstring(meshctl(control, "graph", "--svg"))
    name = "{http://www.w3.org/2000/svg}"
    assert sorted(title.text for title in picture.iter(f"{name}title")) == ["control", "execution", "hop"]
    assert len(list(picture.iter(f"{name}line"))) == 2
