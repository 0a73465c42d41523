"""Tells people: one alert per incident, to every receiver, until it was taken.

    receiver.py     who is told, and how: the configuration, and the secrets that belong to it
    alert.py        what is said, whatever the receiver
    content.py      an incident, or a storm of them, in words
    lifecycle.py     when it is said: opened once, updated when something changed, resolved in the end
    storms.py       many incidents of one job at once become one alert
    merging.py      notifications that are still to be sent, as few as possible
    worker.py      one thread per receiver: retries, order, pace
    posting.py      one HTTP request, bounded in time, without secrets in its errors
    repeating.py    what is sent again and again: open alerts to an Alertmanager, the heartbeat
    signing.py      HMAC of a notification, and how a receiver checks it
    service.py      all of it together, as the leader runs it
    trying.py       a test alert to each receiver
    templates/      one file per kind of receiver
"""
