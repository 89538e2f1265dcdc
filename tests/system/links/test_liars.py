"""A member that writes in others' names: it ends nobody, what it says is outdone at once, and an operator is told."""

import datetime
import json

import pytest

from mesh import until
from peer import ADVERTISEMENT, ROUTING, Peer
from test_doctor import doctor


class Liar(Peer):
    """A neighbour that hears what everybody says, and writes what it likes."""

    heard = None

    def hear(self, of, news=lambda update: True):
        """Reads until such an update of that node comes; the last one heard counts, too."""
        self.heard = self.heard or {}
        while of not in self.heard or not news(self.heard[of]):
            update = json.loads(self.wait_for(ROUTING))
            if update["SuspectedDuplicate"] == 0:
                self.heard[update["NodeID"]] = update
        return self.heard[of]

    def write(self, of, **different):
        """An update in the name of a node, which differs from its last one in this."""
        self.update_count += 1
        update_id = f"lie{self.update_count:05}"
        self.send(ROUTING, self.hear(of) | {"ForwardingNode": self.name, "UpdateID": update_id} | different)


@pytest.fixture(name="chain")
def _chain(mesh):
    """control - hop - middle - victim, and a liar at the hop."""
    mesh.node("hop", listen=True)
    mesh.node("middle", listen=True, peers=["hop"])
    mesh.node("victim", peers=["middle"])
    mesh.node("control", peers=["hop"])
    mesh.start()
    with Liar(mesh.ports["hop"], "liar") as liar:
        liar.introduce("hop")
        liar.hear("victim")
        yield mesh, liar


def told(node):
    return [one for one in doctor(node.socket) if "uses this node's ID" in one["what"]]


def test_a_strangers_notices_do_not_end_a_node(chain):
    """Longer than any patience: each notice names the epoch that the victim has at the moment."""
    mesh, liar = chain
    victim, epochs = mesh["victim"], [liar.hear("victim")["UpdateEpoch"]]
    assert not told(victim)
    for sequence in range(1, 5):
        liar.write("victim", UpdateEpoch=1, UpdateSequence=sequence, Connections={}, SuspectedDuplicate=epochs[-1])
        epochs.append(liar.hear("victim", lambda update: update["UpdateEpoch"] > epochs[-1])["UpdateEpoch"])
        liar.update({"hop": 1.0})
        assert victim.process.poll() is None, victim.log()
    until("the victim to be reached", lambda: mesh["control"].reaches("victim"))
    warnings = [line for line in victim.log().splitlines() if "another node uses this node's ID" in line]
    lines = [line for line in warnings if "middle" in line]
    assert 1 <= len(lines) <= 2, "once a minute, with the neighbour"
    [finding] = told(victim)
    assert "middle" in finding["what"] and finding["severity"] == "error"
    # The next life begins with a later epoch than any that was taken in this one.
    victim.restart()
    liar.hear("victim", lambda update: update["UpdateEpoch"] > epochs[-1])


@pytest.mark.parametrize("sequence", [1_000, 2**64 - 1])
def test_an_update_in_a_nodes_name_is_outdone_at_once(chain, sequence):
    mesh, liar = chain
    said = liar.hear("victim")
    liar.write("victim", UpdateSequence=sequence, Connections={})

    def is_later(update):
        return (update["UpdateEpoch"], update["UpdateSequence"]) > (said["UpdateEpoch"], sequence)

    assert "middle" in liar.hear("victim", is_later)["Connections"]
    until("the victim to be reached", lambda: mesh["control"].reaches("victim"), seconds=10)
    assert told(mesh["victim"]) and not told(mesh["middle"])


def test_a_link_that_one_end_claims_draws_nothing(chain):
    mesh, liar = chain
    liar.update({"hop": 1.0, "victim": 1e-9, "middle": 1e-9})
    # Floods keep their order on each link: once this name is known, the claim is.
    liar.write("victim", NodeID="ghost")
    for node in ["hop", "control", "middle"]:
        until("the claim to pass", lambda n=node: "ghost" in mesh[n].status()["KnownConnectionCosts"])
        status = mesh[node].status()
        assert status["RoutingTable"]["victim"] != "liar"
        assert set(status["KnownConnectionCosts"]["liar"]) <= {"hop"}, status


def test_a_date_in_the_future_is_shown_as_now(chain):
    """AWX takes it for the time at which a node was seen last. The victim puts the rest right, and goes on from that date."""
    mesh, liar = chain
    control = mesh["control"]

    def said():
        ads = control.status()["Advertisements"]
        return next((ad for ad in ads if (ad["NodeID"], ad["Service"]) == ("victim", "control")), None)

    until("the victim's service", said)
    lie = said() | {"Time": "2226-01-01T00:00:00Z", "Tags": {"who": "liar"}, "Cancel": False}
    liar.send(ADVERTISEMENT, lie)
    liar.send(ADVERTISEMENT, lie | {"NodeID": "ghost"})
    until("the lie", lambda: "ghost" in str(control.status()["Advertisements"]))
    until("the victim's own word", lambda: said()["Tags"].get("who") != "liar")
    ads = control.status()["Advertisements"]
    now = datetime.datetime.now(datetime.UTC).isoformat()
    assert all(ad["Time"][:19] <= now[:19] for ad in ads), ads


def test_who_says_nothing_learns_no_links(chain):
    mesh, _ = chain
    until("its neighbours", lambda: len(mesh["hop"].status()["Connections"]) == 3)
    with Peer(mesh.ports["hop"], "stranger") as stranger:
        greetings = [json.loads(stranger.wait_for(ROUTING)) for _ in range(2)]
    assert all(greeting["NodeID"] == "hop" and greeting["Connections"] == {} for greeting in greetings), greetings
