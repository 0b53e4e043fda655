"""Parses statements. A SELECT is only extracted here and left to Spark. Pure."""

from __future__ import annotations

from ottla.spark.sql.failures import SqlError
from ottla.spark.sql.statements import (
    Column,
    CreateAs,
    CreateStream,
    Describe,
    Drop,
    Insert,
    Options,
    Resume,
    Select,
    Show,
    Statement,
    Watermark,
)
from ottla.spark.sql.tokens import Kind, Token, normal_text, statements_of

STATEMENTS = "SELECT, CREATE STREAM, CREATE TABLE ... AS SELECT, INSERT INTO, SHOW, DESCRIBE, DROP and RESUME"
SHOWN = ("STREAMS", "TABLES", "TOPICS", "QUERIES")
DEFINITION_OPTIONS = (
    "topic",
    "format",
    "timestamp",
    "watermark",
    "key",
    "dead_letters",
    "avro_schema",
    "avro_schema_file",
    "avro_framing",
)
QUERY_OPTIONS = ("topic", "format", "timestamp", "watermark", "key", "dead_letters", "partitions")
INSERT_OPTIONS = ("name", "key", "format")
_SELECTS = ("SELECT", "WITH", "VALUES", "FROM")


def parse(text: str) -> list[Statement]:
    """Returns all statements of a text. Raises SqlError with the position of a syntax error."""
    return [_Reader(text, tokens).statement() for tokens in statements_of(text)]


class _Reader:
    """A recursive descent parser for one statement."""

    def __init__(self, text: str, tokens: list[Token]) -> None:
        self._text = text
        self._tokens = tokens
        self._at = 0

    # Tokens.

    def _peek(self, ahead: int = 0) -> Token | None:
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else None

    def _here(self) -> int:
        token = self._peek()
        return token.start if token is not None else self._tokens[-1].end

    def _fail(self, sentence: str, position: int | None = None) -> SqlError:
        return SqlError(sentence, self._text, self._here() if position is None else position)

    def _next_is(self, *words: str) -> bool:
        token = self._peek()
        return token is not None and token.is_word(*words)

    def _take(self, *words: str) -> bool:
        """Consumes these words in sequence, if they are next."""
        for ahead, word in enumerate(words):
            token = self._peek(ahead)
            if token is None or not token.is_word(word):
                return False
        self._at += len(words)
        return True

    def _expect(self, *words: str) -> None:
        if not self._take(*words):
            raise self._fail(f"{' '.join(words)} is expected here")

    def _take_symbol(self, symbol: str) -> bool:
        token = self._peek()
        if token is None or not token.is_symbol(symbol):
            return False
        self._at += 1
        return True

    def _expect_symbol(self, symbol: str, what: str) -> None:
        if not self._take_symbol(symbol):
            raise self._fail(f"{symbol} is expected here: {what}")

    def _name(self, what: str) -> str:
        token = self._peek()
        if token is None or token.kind not in (Kind.NAME, Kind.QUOTED):
            raise self._fail(f"the name of {what} is expected here")
        self._at += 1
        after = self._peek()
        if after is not None and after.start == token.end and after.text in (".", "-"):
            raise self._fail(f"a name with '{after.text}' must be in backticks: `orders{after.text}eu`", token.start)
        if not token.value:
            raise self._fail(f"the name of {what} is empty", token.start)
        return token.value

    def _text_value(self, what: str) -> str:
        token = self._peek()
        if token is None or token.kind is Kind.SYMBOL or token.kind is Kind.QUOTED:
            raise self._fail(f"{what} is expected here, in quotes")
        self._at += 1
        return token.value

    def _end(self) -> None:
        token = self._peek()
        if token is not None:
            raise self._fail(f"the statement should end before {token.text}")

    # Statements.

    def statement(self) -> Statement:
        first = self._tokens[0]
        if first.is_word(*_SELECTS) or first.is_symbol("("):
            return self._select()
        if self._take("CREATE"):
            return self._create(first.start)
        if self._take("INSERT"):
            return self._insert(first.start)
        if self._take("SHOW") or self._take("LIST"):
            return self._show()
        if self._take("DESCRIBE") or self._take("DESC"):
            position = self._here()
            name = self._name("a stream or topic")
            self._end()
            return Describe(name, position)
        if self._take("DROP"):
            return self._drop()
        if self._take("RESUME"):
            position = self._here()
            named = None if self._peek() is None or self._take("ALL") else self._name("a query")
            self._end()
            return Resume(named, position)
        raise self._fail(f"{first.text} is not a supported statement; the statements are {STATEMENTS}")

    def _select(self) -> Select:
        """Extracts the text from here to the end."""
        token = self._peek()
        if token is None or not (token.is_word(*_SELECTS) or token.is_symbol("(")):
            raise self._fail("SELECT is expected here")
        before = "".join("\n" if each == "\n" else " " for each in self._text[: token.start])
        body = before + self._text[token.start : self._tokens[-1].end]
        rest = self._tokens[self._at :]
        names = frozenset(each.value.lower() for each in rest if each.kind in (Kind.NAME, Kind.QUOTED))
        return Select(body, names)

    def _create(self, position: int) -> CreateStream | CreateAs:
        is_table = self._take("TABLE")
        if not is_table and not self._take("STREAM"):
            raise self._fail("STREAM or TABLE is expected here")
        if_not_exists = self._take("IF", "NOT", "EXISTS")
        name = self._name("the table" if is_table else "the stream")
        columns, watermark = self._columns() if self._take_symbol("(") else ((), None)
        watermark = self._watermark() or watermark
        is_query = not columns and self._is_query()
        options = self._options(QUERY_OPTIONS if is_query else DEFINITION_OPTIONS)
        watermark = self._watermark() or watermark
        normal = normal_text(self._tokens)
        if is_query:
            self._expect("AS")
            if watermark is not None:
                raise self._fail("a watermark must be on the streams that are read, or in WITH (...)", position)
            return CreateAs(name, is_table, options, self._select(), normal, self._source(), position, if_not_exists)
        if is_table:
            raise self._fail("a table needs a query: CREATE TABLE name AS SELECT ... GROUP BY ...", position)
        self._end()
        if not columns and options.get("format") is None:
            raise self._fail("columns, or WITH (format = ...), or AS SELECT is expected here")
        return CreateStream(name, columns, watermark, options, normal, position, if_not_exists)

    def _is_query(self) -> bool:
        """Returns whether AS follows the options."""
        depth = 0
        for token in self._tokens[self._at :]:
            depth += token.is_symbol("(") - token.is_symbol(")")
            if depth == 0 and token.is_word("AS"):
                return True
        return False

    def _insert(self, position: int) -> Insert:
        self._expect("INTO")
        into = self._name("the topic")
        options = self._options(INSERT_OPTIONS)
        return Insert(into, options, self._select(), normal_text(self._tokens), self._source(), position)

    def _show(self) -> Show:
        token = self._peek()
        if token is None or not token.is_word(*SHOWN):
            raise self._fail(f"one of {', '.join(SHOWN)} is expected here")
        self._at += 1
        self._end()
        return Show(token.text.upper())

    def _drop(self) -> Drop:
        token = self._peek()
        if token is None or not token.is_word("STREAM", "TABLE", "QUERY"):
            raise self._fail("STREAM, TABLE or QUERY is expected here (topics are deleted by `ottla topics delete`)")
        self._at += 1
        if_exists = self._take("IF", "EXISTS")
        position = self._here()
        name = self._name(f"the {token.text.lower()}")
        self._end()
        return Drop(token.text.upper(), name, if_exists, position)

    def _source(self) -> str:
        return self._text[self._tokens[0].start : self._tokens[-1].end]

    # Parts.

    def _columns(self) -> tuple[tuple[Column, ...], Watermark | None]:
        """Parses the columns after the opening parenthesis."""
        columns: list[Column] = []
        watermark = None
        while True:
            if (found := self._watermark()) is not None:
                watermark = found
            else:
                columns.append(self._column(columns))
            if self._take_symbol(")"):
                return tuple(columns), watermark
            self._expect_symbol(",", "or the closing bracket")

    def _column(self, before: list[Column]) -> Column:
        position = self._here()
        name = self._name("a column")
        if any(each.name.lower() == name.lower() for each in before):
            raise self._fail(f"there are two columns {name}", position)
        start, depth = self._here(), 0
        first = self._at
        while (token := self._peek()) is not None:
            if depth == 0 and token.text in (",", ")"):
                break
            depth += (token.text in ("(", "<")) - (token.text in (")", ">"))
            self._at += 1
        if self._at == first:
            raise self._fail(f"the type of column {name} is expected here", start)
        return Column(name, self._text[start : self._tokens[self._at - 1].end], position)

    def _watermark(self) -> Watermark | None:
        if not self._take("WATERMARK", "FOR"):
            return None
        column = self._name("the column with the event time")
        self._expect("DELAY")
        return Watermark(column, self._text_value("a delay such as '1 minute'"))

    def _options(self, known: tuple[str, ...]) -> Options:
        if not self._next_is("WITH"):
            return Options()
        after = self._peek(1)
        if after is None or not after.is_symbol("("):  # WITH name AS (...) SELECT, which is left to Spark
            return Options()
        self._at += 2
        values: dict[str, str] = {}
        positions: dict[str, int] = {}
        while True:
            position = self._here()
            name = self._name("an option").lower()
            if name not in known:
                raise self._fail(f"{name} is not an option here; the options are {', '.join(known)}", position)
            if name in values:
                raise self._fail(f"the option {name} is given twice", position)
            self._expect_symbol("=", "options are written name = 'value'")
            positions[name] = self._here()
            values[name] = self._text_value(f"the value of {name}")
            if self._take_symbol(")"):
                return Options(values, positions)
            self._expect_symbol(",", "or the closing bracket")
