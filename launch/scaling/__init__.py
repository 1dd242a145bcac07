"""Scaling experiments. In reading order:

main        the two commands: measure, and report
options     the command line -> Request
program     what `tandem` estimates
prices      the GPUs of a node, and its dollars an hour
plan        the cases, those that are left out, and the order of launches
plan_text   the plan as text
environment commit, versions and devices
study       the folder runs/scaling/NAME: what is done, what is missing
launches    one launch: its command, its process, what it measured
running     all launches that are missing
intervals   confidence intervals of medians
amounts     large numbers as short texts
losses      do cases of one global batch train the same model?
results     from launches to the figures of each case
verdicts    what a case shows, and what to try next
charts      line charts, bar charts and heat maps, by matplotlib
plots       which charts show the results
tables      the tables of the report
report      results as HTML, CSV and plots

Another command, launch/recommend.py:

recommend   what to rent for a run
goodput     what interruptions cost a long run

Machine types, hosts, settings files and errors are those of run.sh.
"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "run"))
