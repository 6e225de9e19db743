"""Attacks on the network: sockets of every kind, clients of the standard library, names."""

from tests.environments.code.sandbox.attacks.record import body, deeds, system_calls

_FAMILIES = (
    "AF_INET",
    "AF_INET6",
    "AF_UNIX",
    "AF_NETLINK",
    "AF_PACKET",
    "AF_VSOCK",
    "AF_ALG",
    "AF_BLUETOOTH",
    "AF_CAN",
)
_KINDS = ("SOCK_STREAM", "SOCK_DGRAM", "SOCK_RAW", "SOCK_SEQPACKET")

NETWORK = (
    deeds(
        "network",
        "sockets of every kind",
        "one kind that was forgotten is enough",
        *(f"socket.socket(getattr(socket, '{f}', 40), socket.{kind})" for f in _FAMILIES for kind in _KINDS),
        "socket.socketpair()",
        "socket.create_server(('127.0.0.1', 0))",
    ),
    deeds(
        "network",
        "servers of this machine",
        "what listens on 127.0.0.1 trusts whoever is here",
        "socket.create_connection(('127.0.0.1', @PORT@), timeout=0.3)",
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', @DATAGRAMS@))",
        "socket.socket(socket.AF_UNIX).connect('@NAMED@')",
        "socket.socket(socket.AF_UNIX).connect('\\0named')",
    ),
    deeds(
        "network",
        "clients of the standard library",
        "each of them opens its own socket",
        "import urllib.request; urllib.request.urlopen('http://127.0.0.1:@PORT@')",
        "import http.client; http.client.HTTPConnection('127.0.0.1', @PORT@).connect()",
        "import ftplib; ftplib.FTP().connect('127.0.0.1', @PORT@)",
        "import smtplib; smtplib.SMTP('127.0.0.1', @PORT@)",
        "import xmlrpc.client; xmlrpc.client.ServerProxy('http://127.0.0.1:@PORT@').x()",
        "import socketserver; socketserver.TCPServer(('127.0.0.1', 0), None)",
        "import http.server; http.server.HTTPServer(('127.0.0.1', 0), None)",
        "import asyncio; asyncio.new_event_loop()",
        "import logging.handlers; logging.handlers.SysLogHandler(('127.0.0.1', @DATAGRAMS@))",
        "import multiprocessing.connection as c; c.Client(('127.0.0.1', @PORT@))",
    ),
    deeds(
        "network",
        "names",
        "a question for a name carries the name to a server",
        "socket.getaddrinfo('secret.example.com', 80)",
        "socket.gethostbyname('secret.example.com')",
        "socket.gethostbyaddr('127.0.0.1')",
    ),
    system_calls(
        "network",
        "raw calls",
        "Python need not be asked",
        socket="41, 2, 1, 0",
        socketpair="53, 1, 1, 0, 0",
        connect="42, 3, 0, 0",
        bind="49, 3, 0, 0",
        listen="50, 3, 1",
        accept4="288, 3, 0, 0, 0",
        sendto="44, 3, 0, 0, 0, 0, 0",
        sendmsg="46, 3, 0, 0",
        sendmmsg="307, 3, 0, 0, 0",
        recvmsg="47, 3, 0, 0",
        setns="308, 3, 0x40000000",
        unshare_network="272, 0x40000000",
    ),
    body(
        "network",
        "a descriptor that is a socket already",
        "an inherited socket needs no permission",
        "import socket\nfor number in range(64):\n    try:\n        socket.socket(fileno=number).sendall(b'x')\n"
        "        return 'sent'\n    except OSError:\n        continue\nreturn 'none'",
    ),
)
