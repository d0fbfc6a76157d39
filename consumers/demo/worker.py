"""`celery -A consumers.demo.worker worker`: the shop's application, built from the environment."""

import os

from consumers.demo.shop import make_app

app = make_app(os.environ)
