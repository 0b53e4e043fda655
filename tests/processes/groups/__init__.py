"""Consumer groups of real client libraries, each member a process of its own, while members and coordinators go.

history.py    what a member and the harness record, and how it is read back
checker.py    the anomalies of a history; pure
member.py     a member; *_member.py: the libraries behind it (the Java one is GroupMember.java of the conformance tests)
worlds.py     three brokers, of Ottla or of Apache Kafka
questions.py  who coordinates a group, what it has committed, and a commit in the name of a member that was removed
group.py      a group under test: its members, and what can be done to them
schedules.py  which faults in which order; rounds.py: a run from start to findings; summary.py: its figures
"""
