"""Ranks on different hosts. A host is a network namespace that the test makes itself, with a name in its own /etc/hosts; it needs root and
iproute2."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from torchnative.distributed import _options

TOP = Path(__file__).resolve().parents[2]
SIZE = 3
WHY = None
if os.geteuid() != 0:
    WHY = "namespaces need root"
elif shutil.which("ip") is None:
    WHY = "there is no `ip` (package iproute2)"

RANK = """if True:
    import os, torch, torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group("tn")
    rank, world = dist.get_rank(), dist.get_world_size()
    for size in (3, 1000003):
        tensor = torch.full((size,), float(rank + 1))
        dist.all_reduce(tensor)
        assert tensor.unique().tolist() == [world * (world + 1) / 2]
    received = torch.zeros(4)
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.full((4,), float(rank)), (rank + 1) % world),
                                    dist.P2POp(dist.irecv, received, (rank - 1) % world)])
    [work.wait() for work in works]
    assert received.tolist() == [(rank - 1) % world] * 4
    dist.destroy_process_group()
    print("fine")
"""


def ip(*arguments):
    done = subprocess.run(["ip", *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, (arguments, done.stderr)


@pytest.fixture(scope="module")
def hosts():
    """Names of the namespaces. Host r is 10.98.0.(r+1) and fd98::(r+1); 'master.test' is host 0, which itself takes it for 127.0.1.1."""
    names = [f"tnpy-{os.getpid()}-{rank}" for rank in range(SIZE)]
    hub = f"tnpy-{os.getpid()}-h"
    try:
        ip("netns", "add", hub)
        ip("-n", hub, "link", "add", "br0", "type", "bridge")
        ip("-n", hub, "link", "set", "br0", "up")
        for rank, name in enumerate(names):
            ip("netns", "add", name)
            ip("-n", hub, "link", "add", f"cable{rank}", "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("-n", hub, "link", "set", f"cable{rank}", "master", "br0")
            ip("-n", hub, "link", "set", f"cable{rank}", "up")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "addr", "add", f"10.98.0.{rank + 1}/24", "dev", "eth0")
            ip("-n", name, "addr", "add", f"fd98::{rank + 1}/64", "dev", "eth0", "nodad")
            folder = Path("/etc/netns") / name
            folder.mkdir(parents=True)
            (folder / "hosts").write_text(f"127.0.0.1 localhost\n{'127.0.1.1' if rank == 0 else '10.98.0.1'} master.test\n")
            (folder / "nsswitch.conf").write_text("hosts: files\n")  # there is nobody to ask
        yield names
    finally:
        for name in [*names, hub]:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
            shutil.rmtree(Path("/etc/netns") / name, ignore_errors=True)


def run(hosts, master, *per_rank, **common):
    """What each rank printed: its last line, or the end of its error."""
    processes = []
    for rank, name in enumerate(hosts):
        environment = {**os.environ, "MASTER_ADDR": master, "MASTER_PORT": "29544", "RANK": str(rank), "WORLD_SIZE": str(SIZE), **common,
                       **(per_rank[rank] if per_rank else {})}
        processes.append(subprocess.Popen(["ip", "netns", "exec", name, sys.executable, "-c", RANK], env=environment, text=True,
                                          stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    try:
        outputs = [process.communicate(timeout=100) for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.communicate()
    return [out.strip() or error.strip().rpartition("\n")[2] for out, error in outputs]


pytestmark = pytest.mark.skipif(WHY is not None, reason=str(WHY))
FINE = ["fine"] * SIZE


@pytest.mark.timeout(120)
def test_ipv4_and_kernel_picked_ports(hosts):
    assert run(hosts, "10.98.0.1") == FINE


@pytest.mark.timeout(120)
def test_ipv6(hosts):
    assert run(hosts, "fd98::1") == FINE


@pytest.mark.timeout(120)
def test_a_host_name_that_is_loopback_on_the_host_itself(hosts):
    """Case 5 of the field: the name of the master's host stands for 127.0.1.1 there, and nobody is to be told that address."""
    assert run(hosts, "master.test") == FINE


@pytest.mark.timeout(120)
def test_loopback_among_hosts_is_refused_by_name(hosts):
    for text in run(hosts, "10.98.0.1", {"TN_IFACE": "lo"}, {}, {}):
        assert "rank 0 listens at tcp://127.0.0.1" in text and "rank 1 at tcp://10.98.0.2" in text and "TN_IFACE" in text, text


@pytest.mark.timeout(120)
def test_an_interface_by_name_and_by_address(hosts):
    assert run(hosts, "10.98.0.1", {"TN_IFACE": "eth0"}, {"TN_IFACE": "10.98.0.2"}, {"TN_IFACE": "fd98::3"}) == FINE


@pytest.mark.timeout(120)
def test_mutual_tls(hosts, tmp_path):
    ctl = [TOP / "build" / "bin" / "torchnative-ctl", "cert"]
    subprocess.run([*ctl, "init", "--dir", tmp_path], check=True, capture_output=True)
    environments = []
    for rank in range(SIZE):
        subprocess.run([*ctl, "issue", f"rank{rank}", "--server", "--host", f"10.98.0.{rank + 1}", "--dir", tmp_path], check=True, capture_output=True)
        environments.append({"TN_TLS_CERT": f"{tmp_path}/rank{rank}.pem", "TN_TLS_KEY": f"{tmp_path}/rank{rank}.key", "TN_TLS_CA": f"{tmp_path}/ca.pem"})
    assert run(hosts, "10.98.0.1", *environments, TN_TRANSPORT="tls") == FINE
    stranger = tmp_path / "other"
    subprocess.run([*ctl, "init", "--dir", stranger], check=True, capture_output=True)
    subprocess.run([*ctl, "issue", "rank2", "--server", "--host", "10.98.0.3", "--dir", stranger], check=True, capture_output=True)
    environments[2] = {key: value.replace(str(tmp_path), str(stranger)) for key, value in environments[2].items()}
    for rank, text in enumerate(run(hosts, "10.98.0.1", *environments, TN_TRANSPORT="tls", TN_TIMEOUT="20")):
        assert "certificate" in text or "TLS" in text, text
        assert rank == 2 or "rank 2 is gone" in text, text


def test_interfaces_are_known_by_name():
    found = dict(_options._addresses())
    assert "lo" in found
    with pytest.raises(ValueError, match="there are .*lo"):
        _options._interface_address("no0such")
