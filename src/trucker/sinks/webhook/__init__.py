"""Events as HTTP requests.

`sink` puts the parts together, `http_sender` sends one request, `courier` has many under way and keeps the order of
each key, `sent_events` knows what has been taken, `signature` signs.
"""
