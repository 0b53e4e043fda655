"""For tests of programs that use Ottla: a real broker inside the test process."""
