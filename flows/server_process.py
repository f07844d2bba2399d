"""One Prefect API server on a loopback port, as a process of its own: ``python -m flows.server_process``.

Without ``--detached`` it lives exactly as long as its standard input is open: whoever started it holds the other end
of that pipe, so the server ends with its owner however the owner ends, ``kill -9`` included.
"""

import argparse
import os
import socket
import sys
import threading
import time

GRACE_SECONDS = 8.0
"""Time for requests and services to finish before the process ends anyway."""


def listen(port: int) -> socket.socket:
    """A listening loopback socket; port 0 takes any free one."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    return listener


def main() -> None:
    """Serve until told to end."""
    parser = argparse.ArgumentParser(prog="python -m flows.server_process", description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=0, help="0: any free port")
    parser.add_argument("--detached", action="store_true", help="do not end with the starting process")
    arguments = parser.parse_args()

    listener = listen(arguments.port)
    port = listener.getsockname()[1]
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    os.dup2(2, 1)  # The owner reads one line and closes its end; whatever else is said goes to the log.
    os.environ["PREFECT_SERVER_API_HOST"] = "127.0.0.1"
    os.environ["PREFECT_SERVER_API_PORT"] = str(port)

    # Imported only now: Prefect reads the two settings above while it is imported.
    import uvicorn
    from prefect.server.api.server import create_app

    config = uvicorn.Config(create_app(), log_level="error", timeout_graceful_shutdown=3)
    server = uvicorn.Server(config)

    def end_with_owner() -> None:
        while os.read(0, 1024):
            pass
        server.should_exit = True
        time.sleep(GRACE_SECONDS)
        os._exit(0)

    if not arguments.detached:
        threading.Thread(target=end_with_owner, name="end-with-owner", daemon=True).start()
    server.run(sockets=[listener])
    # Background services may still hold threads; the database is closed by now and nothing else matters.
    os._exit(0)


if __name__ == "__main__":
    main()
