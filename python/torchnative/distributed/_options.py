"""Options of a group from the environment: which transport, which address, which certificates.

Every variable is checked when a group is made; what is not understood or not built is refused by name.
"""

import ipaddress
import os
import socket
import struct
from datetime import timedelta

from torchnative import _tn

_KNOWN = ("shm", "tcp", "tls", "ipc")
_NOT_BUILT = {"shm": "shared memory between the ranks of one host is not built yet"}
_LOOPBACK = "127.0.0.1"


def group_options(store, timeout, default_timeout):
    """Keyword arguments of _tn.Group. `timeout` is c10d's; TN_TIMEOUT serves where the caller left the default."""
    transport = _transport(os.environ.get("TN_TRANSPORT", "shm,tcp,tls"))
    options = {"transport": transport, "timeout": _timeout(timeout, default_timeout)}
    if os.environ.get("TN_TLS", "strict") != "strict":
        raise ValueError(f"TN_TLS={os.environ['TN_TLS']!r}: only 'strict' is built, where every byte travels inside TLS")
    debug = os.environ.get("TN_DEBUG", "DETAIL" if _torch_debugs() else "OFF").upper()
    if debug not in ("OFF", "DETAIL"):
        raise ValueError(f"TN_DEBUG={os.environ['TN_DEBUG']!r} is not known: OFF, or DETAIL to compare what all ranks do before each collective")
    if debug == "DETAIL":
        options["check"] = True
    if "TN_TUNE" in os.environ:
        raise ValueError("TN_TUNE is not built yet: unset it")
    if transport == "tls":
        for key in ("cert", "key", "ca"):
            path = os.environ.get(f"TN_TLS_{key.upper()}")
            if not path:
                raise ValueError(f"TN_TRANSPORT=tls needs TN_TLS_CERT, TN_TLS_KEY and TN_TLS_CA; TN_TLS_{key.upper()} is not set")
            options[key] = path
    if transport in ("tcp", "tls"):
        options["host"] = _address(store)
    return options


def _torch_debugs():
    """Whether torch is to compare the ranks' calls (TORCH_DISTRIBUTED_DEBUG=DETAIL), which its wrapper does for its own backends only."""
    import torch.distributed as dist

    return dist.get_debug_level() == dist.DebugLevel.DETAIL


def _transport(text):
    wanted = [name.strip() for name in text.split(",") if name.strip()]
    for name in wanted:
        if name not in _KNOWN:
            raise ValueError(f"TN_TRANSPORT={text!r}: there is no transport '{name}'; there are {', '.join(_KNOWN)}")
    for name in wanted:
        if name not in _NOT_BUILT:
            return name
    if not wanted:
        raise ValueError("TN_TRANSPORT is empty: unset it, or list transports in order of preference, such as 'tcp'")
    raise ValueError(f"TN_TRANSPORT={text!r}: {_NOT_BUILT[wanted[0]]}; add tcp")


def _timeout(timeout, default):
    text = os.environ.get("TN_TIMEOUT")
    if text is not None and timeout == default:
        try:
            seconds = float(text)
        except ValueError:
            seconds = -1.0
        if not 0 < seconds < float("inf"):
            raise ValueError(f"TN_TIMEOUT={text!r} is not a number of seconds above 0")
        return seconds
    if isinstance(timeout, timedelta):
        timeout = timeout.total_seconds()
    if not timeout > 0:
        raise ValueError(f"the time-out of a group must be above 0 seconds, not {timeout}")
    return float(timeout)


def _address(store):
    """Where this rank listens: TN_IFACE, or loopback when the store is on this host's loopback or says no host, or the address on
    the route to the store's host."""
    interface = os.environ.get("TN_IFACE")
    if interface:
        return _interface_address(interface)
    host = _store_host(store)
    if host is None or _is_loopback(host):
        return _LOOPBACK
    address = _tn.route_address(host)
    if _is_loopback(address):
        # The store's host is this one, and /etc/hosts gives its name a loopback address, which is of no use to other hosts.
        others = [pair for pair in _addresses() if not _is_loopback(pair[1])]
        if len({interface for interface, _ in others}) == 1:
            return others[0][1]
    return address


def _interface_address(name):
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        pass
    for interface, address in _addresses():
        if interface == name:
            return address
    known = ", ".join(dict.fromkeys(interface for interface, _ in _addresses()))
    raise ValueError(f"TN_IFACE={name!r} is neither an address nor an interface with one; there are {known}")


def _addresses():
    """Pairs of an interface's name and an address, IPv4 first: those that other hosts can be told."""
    import fcntl

    siocgifaddr, found = 0x8915, []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe.fileno(), siocgifaddr, struct.pack("256s", name.encode()[:15]))
            except OSError:  # no IPv4 address
                continue
            found.append((name, socket.inet_ntoa(answer[20:24])))
    try:
        with open("/proc/net/if_inet6") as table:
            for line in table:
                digits, _, _, _, _, name = line.split()
                address = ipaddress.IPv6Address(int(digits, 16))
                if not address.is_link_local:
                    found.append((name, str(address)))
    except FileNotFoundError:  # no IPv6 here
        pass
    return found


def _store_host(store):
    while store is not None:
        inner = getattr(store, "underlying_store", None)
        if inner is None:
            return getattr(store, "host", None)
        store = inner
    return None


def _is_loopback(host):
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
