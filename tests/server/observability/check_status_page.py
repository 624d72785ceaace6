#!/usr/bin/env python3
"""Opens the status page of a server in a browser: its script runs under the page's own policy, and the page renews itself.

  check_status_page.py GDN_SERVER

Exits 77 without a browser (chromium or chromium-headless-shell). The browser reaches the server through a proxy that counts what
it asks for; it runs for a few seconds and is then ended.
"""

import http.server
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

SECONDS = 60  # for the page to be asked for three times; it asks every 5 s


def free_port_server(handler):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def wait_for(condition, seconds, what):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            sys.exit(f"check_status_page.py: {what} within {seconds} s")
        time.sleep(0.1)


def http_port_of(log):
    """The port in the line that tells where HTTP is answered, or None."""
    found = re.search(r"HTTP on port (\d+)", log.read_text(errors="replace"))
    return int(found.group(1)) if found else None


def main():
    browser = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if browser is None:
        print("no browser here")
        return 77
    asked = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        log = folder / "log"
        with log.open("w") as out:
            server = subprocess.Popen([sys.argv[1], "--listen=127.0.0.1:0", "--http-listen=127.0.0.1:0", "--backend=cpu",
                                       "--threads=1", f"--port-file={folder}/port"], stdout=out, stderr=out)
        try:
            wait_for(lambda: http_port_of(log) is not None, 60, "the log does not tell the HTTP port")
            port = http_port_of(log)

            class Proxy(http.server.BaseHTTPRequestHandler):
                def do_GET(self):
                    asked.append(self.path)
                    request = urllib.request.Request(f"http://127.0.0.1:{port}{self.path}", headers={"Host": "127.0.0.1"})
                    try:
                        reply = urllib.request.urlopen(request, timeout=10)
                    except urllib.error.HTTPError as error:
                        reply = error
                    body = reply.read()
                    self.send_response(reply.status)
                    for key in ("Content-Type", "Content-Security-Policy", "X-Content-Type-Options"):
                        if reply.headers.get(key):
                            self.send_header(key, reply.headers[key])
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)

                def log_message(self, *_):
                    pass

            proxy = free_port_server(Proxy)
            page = subprocess.Popen(
                [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/browser",
                 "--remote-debugging-port=0", f"http://127.0.0.1:{proxy.server_address[1]}/statusz"],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                wait_for(lambda: asked.count("/statusz") >= 3, SECONDS, f"the page asked for {asked}, expected itself three times")
            finally:
                page.kill()
                page.wait()
                proxy.shutdown()
        finally:
            server.terminate()
            server.wait(timeout=60)
    if "/statusz.js" not in asked:
        sys.exit(f"check_status_page.py: the page asked for {asked}, expected its script")
    print(f"the page asked for its script, and {asked.count('/statusz')} times for itself")
    return 0


if __name__ == "__main__":
    sys.exit(main())
