"""python search.py articles.db "the words": the articles that have them, the best first."""

import sqlite3
import sys

index, words = sys.argv[1:]
query = "select rowid, title from articles where articles match ? order by rank, rowid limit 10"
for number, title in sqlite3.connect(index).execute(query, (words,)):
    sys.stdout.write(f"{number} {title}\n")
