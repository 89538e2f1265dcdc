"""Dials that end for the same reason each time: told once, with the reason, and `meshctl doctor` knows it.

Each further attempt is a line at debug, so the tests wait for some of these and count the others.
"""

import re
import socket
import ssl

import pytest

import go
from mesh import free_port, until
from test_doctor import examine, told

DEBUG = {"log-level": "debug"}


def lines(node, level, words):
    return [line for line in node.log().splitlines() if f" {level} " in f" {line} " and words in line]


def repeats(node, words, times=3):
    until(f"{words} at debug {times} times", lambda: len(lines(node, "DEBUG", words)) >= times)


def quiet(node):
    """The lines that an operator sees."""
    return [line for line in node.log().splitlines() if " WARN " in line or "connected" in line and " INFO " in line]


@pytest.mark.parametrize("kind", ["tcp", "udp"])
def test_a_peer_that_is_down_is_told_once(mesh, kind):
    port = free_port()
    near = mesh.add("near", [DEBUG, {f"{kind}-peer": {"address": f"127.0.0.1:{port}"}}]).start()
    repeats(near, "still cannot reach peer")
    (line,) = [line for line in quiet(near) if "peer" in line]
    assert "cannot reach peer, trying again" in line and f"cannot connect to 127.0.0.1:{port}" in line, line
    assert "Connection refused" in line, line
    # Once it was up, it is news again.
    far = mesh.add("far", [{f"{kind}-listener": {"port": port, "bindaddr": "127.0.0.1"}}]).start()
    near.logged(" connected ")
    far.stop()
    until("the second line", lambda: len(lines(near, "WARN", "cannot reach peer")) >= 2)


def test_where_both_ends_dial_one_of_the_dials_is_in_reserve(mesh):
    ports = {"left": free_port(), "right": free_port()}
    for name, other in (("left", "right"), ("right", "left")):
        listener = {"tcp-listener": {"port": ports[name], "bindaddr": "127.0.0.1"}}
        mesh.add(name, [DEBUG, listener, {"tcp-peer": {"address": f"127.0.0.1:{ports[other]}"}}])
    nodes = [mesh["left"].start(), mesh["right"].start()]
    mesh.wait_for_routes()
    until("refused sessions", lambda: all(len(lines(node, "DEBUG", " disconnected ")) >= 3 for node in nodes))
    reserve = [line for node in nodes for line in lines(node, "INFO", "keeping this dial in reserve")]
    assert len(reserve) == 1 and "its own dial" in reserve[0], reserve
    for node in nodes:
        assert "connection refused" not in node.log(), node.log()
        assert node.log().count(" connected ") == 1, node.log()
    found = [one for node in nodes for one in examine(node) if "-peer" in one["where"]]
    (one,) = found
    assert one["severity"] == "warning" and "is linked already" in one["what"] and "both ends dial" in one["remedy"], one


def test_our_own_name_as_a_peer_is_told_once(mesh):
    port = free_port()
    listener = {"tcp-listener": {"port": port, "bindaddr": "127.0.0.1"}}
    node = mesh.add("a", [DEBUG, listener, {"tcp-peer": {"address": f"127.0.0.1:{port}"}}]).start()
    repeats(node, " disconnected ", 6)
    refused = lines(node, "WARN", "connection refused")
    assert len(refused) <= 2 and any("this node's own ID" in line for line in refused), refused
    assert " connected " not in node.log(), node.log()
    told(examine(node), "this node refuses it: it uses this node's own ID", "meshctl reload")


def test_a_node_that_is_not_wanted_never_says_that_it_is_connected(mesh):
    port = free_port()
    listener = {"tcp-listener": {"port": port, "bindaddr": "127.0.0.1", "allowedpeers": ["other"]}}
    far = mesh.add("far", [DEBUG, listener]).start()
    near = mesh.add("near", [DEBUG, {"tcp-peer": {"address": f"127.0.0.1:{port}"}}]).start()
    for node in (far, near):
        repeats(node, " disconnected ")
        assert len(lines(node, "WARN", "connection refused")) == 1, node.log()
        assert " connected " not in node.log(), node.log()


@pytest.mark.parametrize("hop", ["meshd", *go.EACH])
def test_the_second_node_of_a_name_is_told_once_and_never_connected(mesh, hop):
    port = free_port()
    listener = {"tcp-listener": {"port": port, "bindaddr": "127.0.0.1"}}
    mesh.add("hop", [listener], program=go.program(hop)).start()
    first, twin = (mesh.add(name, [DEBUG, {"tcp-peer": {"address": f"127.0.0.1:{port}"}}]) for name in ("near", "twin"))
    twin.config.write_text(twin.config.read_text().replace('"id": "twin"', '"id": "near"'))
    first.start()
    first.logged(" connected ")
    twin.spawn()
    # A node of receptor closes often before its words are read, so there are a few reasons; none is told twice.
    until("eight attempts", lambda: len(re.findall(" (?:disconnected|connection refused|(?:still )?cannot reach peer)", twin.log())) >= 8)
    told_of = [re.sub("^.*? WARN ", "", re.sub("session=#[0-9]+", "", line)) for line in lines(twin, "WARN", "")]
    assert told_of and len(told_of) == len(set(told_of)) <= 4, told_of
    assert " connected " not in twin.log(), twin.log()
    # Of a Go node's refusals some are read, as it comes.
    if hop == "meshd":
        until("it to know who refuses", lambda: [one for one in examine(twin) if "it refuses this node" in one["what"]])
        told(examine(twin), "answers, but it refuses this node", "another node with this ID is in the mesh (one bundle is for one host)")


def test_a_listener_without_tls_answers_who_speaks_tls(mesh):
    port = free_port()
    hub = mesh.add("hub", [DEBUG, {"ws-listener": {"port": port, "bindaddr": "127.0.0.1"}}]).start()
    edge = mesh.add("edge", [DEBUG, {"ws-peer": {"address": f"wss://127.0.0.1:{port}/"}}]).start()
    repeats(edge, "still cannot reach peer")
    (line,) = lines(edge, "WARN", "cannot reach peer")
    assert "the peer does not speak TLS" in line and "set tls at both ends, or at none" in line, line
    (line,) = lines(hub, "WARN", "neighbour refused")
    assert "the client speaks TLS, and this listener does not" in line, line
    # Any client of TLS is told at once, and not after the time for a request.
    with socket.create_connection(("127.0.0.1", port), 5) as stream, pytest.raises(ssl.SSLError):
        ssl.create_default_context().wrap_socket(stream, server_hostname="hub")
