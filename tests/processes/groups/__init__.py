"""Consumer groups of real client libraries, each member a process, while members and coordinators fail.

history.py    the lines that members and the harness record, and their parser
checker.py    finds the anomalies of a history; pure
member.py     a member; *_member.py: the libraries behind it (the Java one is GroupMember.java of the conformance tests)
worlds.py     three brokers, of Ottla or of Apache Kafka
questions.py  requests of the harness: coordinator, committed offsets, a commit in the name of a removed member
group.py      a group under test: its members and operations on them
schedules.py  the order of faults; rounds.py: a run from start to findings; summary.py: its figures
"""
