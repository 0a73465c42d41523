"""The one HTTP port of a process.

    http_server.py            the port: who may listen and who may ask
    health.py                 /healthz, /healthz/live, /healthz/ready
    alertmanager_hook.py      /hooks/alertmanager: a site's own alerts become events (alertmanager_payload.py reads them)
    approval_page.py          /approve/{token}: one plan, decided once

Each of them gives `Route`s; `http_server.py` knows none of them.
"""
