//! Statements in EMQX's dialect with the results that EMQX's test suite expects for this kind: one line each,
//! so that a divergence is one more line. A case is a statement without FROM, a payload, and the outputs or
//! the kind of the error.

use rules::{CompileOptions, Dialect, compile};

use super::{fluxmq, publish, try_run};

/// The result of a statement.
enum StatementResult {
    /// Outputs as JSON in order; empty if WHERE is not true.
    Out(&'static [&'static str]),
    /// An evaluation error of this kind.
    Error(&'static str),
    /// The statement is rejected; a part of the error.
    Rejected(&'static str),
}

use StatementResult::{Error, Out, Rejected};

const ARRAY: &str = r#"{"x": [1, {"y": [1, 2]}, 3]}"#;
const LIST: &str = r#"{"sensors": [{"cmd": "1", "name": "n"}, {"cmd": "2"}, {"name": "z"}]}"#;
const NULLS: &str =
    r#"{"null": null, "text": "null", "one": 1, "half": 0.5, "list": [1, null, "1"]}"#;

/// SELECT .. WHERE .. in EMQX's dialect.
const EMQX: &[(&str, &str, StatementResult)] = &[
    // Names and nested names.
    (
        "SELECT payload.cmd AS cmd WHERE cmd.info = 'tt'",
        r#"{"cmd": {"info": "tt"}}"#,
        Out(&[r#"{"cmd":{"info": "tt"}}"#]),
    ),
    (
        "SELECT payload.cmd AS c, c.info AS meta.info WHERE meta.info = 'tt'",
        r#"{"cmd": {"info": "tt"}}"#,
        Out(&[r#"{"c":{"info": "tt"},"meta":{"info":"tt"}}"#]),
    ),
    (
        "SELECT payload AS p, p.a.b AS c",
        r#"{"a": {"b": 0}}"#,
        Out(&[r#"{"p":"{\"a\": {\"b\": 0}}","c":0}"#]),
    ),
    (
        "SELECT payload, 'S' AS payload.data[1].name",
        r#"{"f": 1, "data": [{"name": "a", "i": 1}, {"name": "b"}]}"#,
        Out(&[r#"{"payload":{"f":1,"data":[{"name":"S","i":1},{"name": "b"}]}}"#]),
    ),
    (
        "SELECT payload.x[2].y",
        ARRAY,
        Out(&[r#"{"payload":{"x":[{"y":[1, 2]}]}}"#]),
    ),
    (
        "SELECT payload, payload.x[2].y",
        ARRAY,
        Out(&[r#"{"payload":{"x":[1,{"y":[1, 2]},3]}}"#]),
    ),
    (
        "SELECT payload.x, 0 AS payload.x[2].y",
        ARRAY,
        Out(&[r#"{"payload":{"x":[1,{"y":0},3]}}"#]),
    ),
    (
        "SELECT 0 AS payload.x[2].y",
        ARRAY,
        Out(&[r#"{"payload":{"x":[{"y":0}]}}"#]),
    ),
    (
        "SELECT payload.x[-2].y AS b",
        ARRAY,
        Out(&[r#"{"b":[1, 2]}"#]),
    ),
    (
        "SELECT payload.x[2]",
        ARRAY,
        Out(&[r#"{"payload":{"x":[{"y": [1, 2]}]}}"#]),
    ),
    (
        "SELECT payload.x[qos + 1].y AS v",
        ARRAY,
        Out(&[r#"{"v":[1, 2]}"#]),
    ),
    (
        "SELECT payload.x AS x, 2 AS n, 'new' AS x[n]",
        ARRAY,
        Out(&[r#"{"x":[1,"new",3],"n":2}"#]),
    ),
    (
        "SELECT payload.x AS x, 7 AS n, 'new' AS x[n]",
        ARRAY,
        Out(&[r#"{"x":[1,{"y": [1, 2]},3],"n":7}"#]),
    ),
    (
        "SELECT 1 AS c[-0], 2 AS c[-0], 0 AS c[0]",
        "",
        Out(&[r#"{"c":[0,1,2]}"#]),
    ),
    (
        "SELECT [] AS c, 1 AS c[-0], 0 AS c[0]",
        "",
        Out(&[r#"{"c":[0,1]}"#]),
    ),
    (
        "SELECT [payload.a, \"topic\", 'c'] AS c",
        r#"{"a": 11}"#,
        Out(&[r#"{"c":[11,"t/a","c"]}"#]),
    ),
    (
        "SELECT topic AS t WHERE \"topic\" = 't/a'",
        "",
        Out(&[r#"{"t":"t/a"}"#]),
    ),
    ("SELECT \"topic\"", "", Out(&[r#"{"topic":"t/a"}"#])),
    (
        "SELECT topic AS t WHERE \"payload\".a = 1",
        r#"{"a": 1}"#,
        Out(&[r#"{"t":"t/a"}"#]),
    ),
    // Ranges.
    (
        "SELECT payload.a[1..4] AS c",
        r#"{"a": [0, 1, 2, 3, 4, 5]}"#,
        Out(&[r#"{"c":[0,1,2,3]}"#]),
    ),
    (
        "SELECT payload.a[1..4]",
        r#"{"a": [0, 1, 2, 3, 4, 5]}"#,
        Out(&[r#"{"payload":{"a":[0,1,2,3]}}"#]),
    ),
    (
        "SELECT payload.a[1..4] AS c",
        r#"{"x": [0, 1]}"#,
        Error("type"),
    ),
    (
        "SELECT [1..4] AS c, 5 AS c[-0]",
        "",
        Out(&[r#"{"c":[1,2,3,4,5]}"#]),
    ),
    // Payloads that are not JSON.
    (
        "SELECT payload.a[1..4] AS c",
        r#"{"x": [0, 1, 2, 3,}"#,
        Error("payload"),
    ),
    (
        "FOREACH payload.sensors DO item.cmd AS m",
        r#"{"sensors": [{"cmd": "1"} {"cmd": }]}"#,
        Error("payload"),
    ),
    (
        "SELECT payload AS p",
        "not JSON",
        Out(&[r#"{"p":"not JSON"}"#]),
    ),
    (
        "SELECT map_get('a', payload) AS p",
        "not JSON",
        Error("type"),
    ),
    // Null and undefined.
    (
        "SELECT is_null(payload.none) AS a, is_null(payload.null) AS b, is_null_var(payload.null) AS c",
        NULLS,
        Out(&[r#"{"a":true,"b":false,"c":true}"#]),
    ),
    (
        "SELECT is_not_null(payload.none) AS a, is_not_null(payload.null) AS b, is_not_null_var(payload.null) AS c",
        NULLS,
        Out(&[r#"{"a":false,"b":true,"c":false}"#]),
    ),
    (
        "SELECT payload.none = payload.nothing AS a, payload.none != payload.nothing AS b, payload.none >= payload.nothing AS c, payload.none > payload.nothing AS d",
        NULLS,
        Out(&[r#"{"a":true,"b":false,"c":true,"d":false}"#]),
    ),
    (
        "SELECT payload.none = 1 AS a, payload.none != 1 AS b, payload.none < 1 AS c",
        NULLS,
        Out(&[r#"{"a":false,"b":false,"c":false}"#]),
    ),
    (
        "SELECT payload.null = 1 AS a, payload.null != 1 AS b, payload.null = payload.text AS c, payload.null = payload.none AS d",
        NULLS,
        Out(&[r#"{"a":false,"b":true,"c":true,"d":false}"#]),
    ),
    ("SELECT topic AS t WHERE payload.none != 5", NULLS, Out(&[])),
    (
        "SELECT topic AS t WHERE payload.null != 5",
        NULLS,
        Out(&[r#"{"t":"t/a"}"#]),
    ),
    (
        "SELECT topic AS t WHERE not (payload.none = 5)",
        NULLS,
        Out(&[r#"{"t":"t/a"}"#]),
    ),
    ("SELECT topic AS t WHERE not payload.none", NULLS, Out(&[])),
    ("SELECT topic AS t WHERE not payload.one", NULLS, Out(&[])),
    (
        "SELECT str(payload.none) AS a, str(payload.null) AS b, concat('x', payload.none) AS c, 'x' + payload.none AS d",
        NULLS,
        Out(&[r#"{"a":"undefined","b":"null","c":"xundefined","d":"xundefined"}"#]),
    ),
    (
        "SELECT coalesce(payload.none, 1) AS a, coalesce(payload.null, 1) AS b",
        NULLS,
        Out(&[r#"{"a":1,"b":null}"#]),
    ),
    // A required value is missing: the rule fails, and no action receives null.
    ("SELECT payload.none * 1.8 + 32 AS f", NULLS, Error("type")),
    ("SELECT payload.null + 1 AS f", NULLS, Error("type")),
    ("SELECT 1 - payload.none AS f", NULLS, Error("type")),
    (
        "SELECT payload.one / payload.none AS f",
        NULLS,
        Error("type"),
    ),
    ("SELECT payload.none div 2 AS f", NULLS, Error("type")),
    ("SELECT mod(payload.none, 2) AS f", NULLS, Error("type")),
    ("SELECT -payload.none AS f", NULLS, Error("type")),
    (
        "SELECT payload.none + payload.none AS f",
        NULLS,
        Error("type"),
    ),
    ("SELECT payload.one / 0 AS f", NULLS, Error("not_a_number")),
    (
        "SELECT payload.one div 0 AS f",
        NULLS,
        Error("not_a_number"),
    ),
    (
        "SELECT payload.one - payload.text AS f",
        NULLS,
        Error("type"),
    ),
    ("SELECT abs(payload.none) AS f", NULLS, Error("type")),
    ("SELECT round(payload.null) AS f", NULLS, Error("type")),
    ("SELECT upper(payload.none) AS f", NULLS, Error("type")),
    ("SELECT strlen(payload.none) AS f", NULLS, Error("type")),
    ("SELECT split(payload.none, '/') AS f", NULLS, Error("type")),
    ("SELECT substr(payload.none, 1) AS f", NULLS, Error("type")),
    (
        "SELECT replace(payload.none, 'a', 'b') AS f",
        NULLS,
        Error("type"),
    ),
    (
        "SELECT regex_match(payload.none, 'a') AS f",
        NULLS,
        Error("type"),
    ),
    ("SELECT int(payload.none) AS f", NULLS, Error("type")),
    ("SELECT float(payload.none) AS f", NULLS, Error("type")),
    ("SELECT md5(payload.none) AS f", NULLS, Error("type")),
    (
        "SELECT base64_encode(payload.none) AS f",
        NULLS,
        Error("type"),
    ),
    ("SELECT length(payload.none) AS f", NULLS, Error("type")),
    ("SELECT first(payload.none) AS f", NULLS, Error("type")),
    ("SELECT nth(1, payload.none) AS f", NULLS, Error("type")),
    ("SELECT map_keys(payload.none) AS f", NULLS, Error("type")),
    ("SELECT bitand(payload.none, 1) AS f", NULLS, Error("type")),
    (
        "SELECT unix_ts_to_rfc3339(payload.none) AS f",
        NULLS,
        Error("type"),
    ),
    (
        "SELECT topic AS t WHERE payload.none + 1 > 0 or true",
        NULLS,
        Error("type"),
    ),
    // Cases in which EMQX gives a result.
    (
        "SELECT rm_prefix(payload.none, 'a') AS a, map_get('a', payload.none) AS b, map_get('a', payload.none, 3) AS c",
        NULLS,
        Out(&[r#"{"a":null,"b":null,"c":3}"#]),
    ),
    (
        "SELECT CASE WHEN is_null(payload.none) THEN 0 ELSE payload.none * 2 END AS a, coalesce(payload.none, 2) * 2 AS b",
        NULLS,
        Out(&[r#"{"a":0,"b":4}"#]),
    ),
    (
        "SELECT contains(payload.null, payload.list) AS a, contains(payload.none, payload.list) AS b, contains(payload.null, [1]) AS c",
        NULLS,
        Out(&[r#"{"a":true,"b":false,"c":false}"#]),
    ),
    (
        "SELECT contains(payload.null, 'null') AS f",
        NULLS,
        Error("type"),
    ),
    (
        "SELECT sprintf('~s ~p', payload.none, payload.null) AS a, sprintf('~s', payload.text) AS b",
        NULLS,
        Out(&[r#"{"a":"undefined null","b":"null"}"#]),
    ),
    (
        "SELECT sprintf('~b', payload.none) AS f",
        NULLS,
        Error("invalid"),
    ),
    (
        "SELECT json_encode(payload.null) AS a, json_encode(payload.none) AS b, jq('.', payload.null) AS c, jq('.', payload.none) AS d",
        NULLS,
        Out(&[r#"{"a":"null","b":"\"undefined\"","c":[null],"d":["undefined"]}"#]),
    ),
    (
        "SELECT timezone_to_offset_seconds(payload.none) AS a, map_to_redis_hset_args(payload.none) AS b, map_to_redis_hset_args(payload.one) AS c",
        NULLS,
        Out(&[r#"{"a":0,"b":[],"c":[]}"#]),
    ),
    (
        "SELECT timezone_to_offset_seconds(payload.null) AS f",
        NULLS,
        Error("type"),
    ),
    // Unlike EMQX: values of different types have no order, and a text that is a number is a number.
    (
        "SELECT payload.null > 0 AS a, payload.list > 0 AS b, true > 0 AS c, payload.list < 'a' AS d, payload.list = 'a' AS e",
        NULLS,
        Out(&[r#"{"a":false,"b":false,"c":false,"d":false,"e":false}"#]),
    ),
    (
        "SELECT payload.d * 2 AS a, payload.d - 1 AS b, abs(payload.d) AS c, strlen(payload.n) AS d, upper(payload.t) AS e",
        r#"{"d": "-5", "n": 12, "t": true}"#,
        Out(&[r#"{"a":-10,"b":-6,"c":5,"d":2,"e":"TRUE"}"#]),
    ),
    // A number is not compared with text that is no number.
    (
        "SELECT payload.one = payload.text AS a",
        NULLS,
        Error("type"),
    ),
    (
        "SELECT topic AS t WHERE payload.one != payload.text",
        NULLS,
        Error("type"),
    ),
    (
        "SELECT topic AS t WHERE payload.text > 0.5",
        NULLS,
        Error("type"),
    ),
    (
        "SELECT payload.one = '1' AS a, '0.5' = payload.half AS b, '10' > 9 AS c, payload.text = 'null' AS d",
        NULLS,
        Out(&[r#"{"a":true,"b":true,"c":true,"d":true}"#]),
    ),
    // IN and CASE match only values of the same type.
    (
        "SELECT payload.one in (1, 2) AS a, payload.one in ('1') AS b, payload.one in (1.0) AS c",
        NULLS,
        Out(&[r#"{"a":true,"b":false,"c":false}"#]),
    ),
    (
        "SELECT payload.null in (payload.list[2]) AS a, payload.none in (payload.nothing) AS b, payload.null in (payload.none) AS c",
        NULLS,
        Out(&[r#"{"a":true,"b":true,"c":false}"#]),
    ),
    (
        "SELECT CASE payload.one WHEN '1' THEN 'text' WHEN 1 THEN 'int' END AS a",
        NULLS,
        Out(&[r#"{"a":"int"}"#]),
    ),
    (
        "SELECT CASE WHEN payload.none > 7 THEN 7 END AS y",
        NULLS,
        Out(&[r#"{"y":null}"#]),
    ),
    (
        "SELECT CASE WHEN payload.x < 0 THEN 0 WHEN payload.x > 7 THEN 7 ELSE payload.x END AS y",
        r#"{"x": 8}"#,
        Out(&[r#"{"y":7}"#]),
    ),
    // Comparisons of numbers and text.
    (
        "SELECT '10' > 9 AS a, 9 < '10' AS b, '10' = 10 AS c, '1.5' = 1.5 AS d",
        "",
        Out(&[r#"{"a":true,"b":true,"c":true,"d":true}"#]),
    ),
    (
        "SELECT payload.a > '5' AS v",
        r#"{"a": "30"}"#,
        Out(&[r#"{"v":false}"#]),
    ),
    // Large integers.
    (
        "SELECT payload.a = payload.b AS eq, payload.a < payload.b AS lt, payload.a AS a",
        r#"{"a": 18446744073709551616, "b": 18446744073709551617}"#,
        Out(&[r#"{"eq":false,"lt":true,"a":18446744073709551616}"#]),
    ),
    (
        "SELECT payload.a + 1 AS a",
        r#"{"a": 18446744073709551616}"#,
        Error("overflow"),
    ),
    (
        "SELECT payload.a = '9223372036854775808' AS a, payload.a in (9223372036854775807) AS b",
        r#"{"a": 9223372036854775808}"#,
        Out(&[r#"{"a":true,"b":false}"#]),
    ),
    (
        "SELECT distinct(payload) AS d",
        "[9223372036854775808, 9223372036854775809, 9223372036854775808]",
        Out(&[r#"{"d":[9223372036854775808,9223372036854775809]}"#]),
    ),
    ("SELECT 9223372036854775808 AS a", "", Rejected("too large")),
    // Operators as functions, and signs.
    (
        "SELECT 2 mod 2 AS a, mod(3, 2) AS b, 4 div 2 AS c, div(7, 2) AS d",
        "",
        Out(&[r#"{"a":0,"b":1,"c":2,"d":3}"#]),
    ),
    (
        "SELECT -1 + 1 AS a, +1 AS b, 1-1 AS c, 7 / 2 AS d",
        "",
        Out(&[r#"{"a":0,"b":1,"c":0,"d":3.5}"#]),
    ),
    (
        "SELECT [21 + 21, abs(-abs(-2)), [1 + 1]] AS a",
        "",
        Out(&[r#"{"a":[42,2,[2]]}"#]),
    ),
    (
        "SELECT true AS a, false AS x.y, true AS c[-0]",
        "",
        Out(&[r#"{"a":true,"x":{"y":false},"c":[true]}"#]),
    ),
    // Maps.
    (
        "SELECT map_put('k', 'v', payload.none) AS m",
        "{}",
        Out(&[r#"{"m":{"k":"v"}}"#]),
    ),
    (
        "SELECT map_put('a.b', 1, payload.none) AS m, mput('a.b', 1, payload.none) AS n",
        "{}",
        Out(&[r#"{"m":{"a":{"b":1}},"n":{"a.b":1}}"#]),
    ),
    (
        "SELECT payload, map_get('w', payload.p, -1) AS payload.p.w",
        r#"{"p": {"a": 1}}"#,
        Out(&[r#"{"payload":{"p":{"a":1,"w":-1}}}"#]),
    ),
    (
        "SELECT jq('.a|.[]', '{\"a\": [{\"b\": 1}, {\"b\": 2}]}') AS j, j[1].b AS first",
        "",
        Out(&[r#"{"j":[{"b":1},{"b":2}],"first":1}"#]),
    ),
    // FOREACH.
    (
        "FOREACH payload.sensors AS s DO s.cmd AS m, s.name AS n INCASE is_not_null(s.cmd)",
        LIST,
        Out(&[r#"{"m":"1","n":"n"}"#, r#"{"m":"2","n":null}"#]),
    ),
    (
        "FOREACH payload.sensors DO item.cmd AS m INCASE item.cmd != 1",
        LIST,
        Out(&[r#"{"m":"2"}"#]),
    ),
    (
        "FOREACH payload.sensors DO item AS item",
        r#"{"sensors": [1, 2]}"#,
        Out(&[r#"{"item":1}"#, r#"{"item":2}"#]),
    ),
    (
        "FOREACH payload.sensors AS s DO s.cmd AS m",
        r#"{"sensors": 1}"#,
        Out(&[]),
    ),
    (
        "FOREACH payload AS item DO item.d AS d",
        r#"[{"d": "a"}, {"d": "b"}]"#,
        Out(&[r#"{"d":"a"}"#, r#"{"d":"b"}"#]),
    ),
    (
        "FOREACH json_decode(payload) AS p, p.s AS s, s.c.info AS i DO i.cmd AS m, s.page AS p INCASE is_map(i) WHERE s.page = '2'",
        r#"{"s": {"page": 2, "c": {"info": ["x", {"cmd": "1"}]}}}"#,
        Out(&[r#"{"m":"1","p":2}"#]),
    ),
    // Errors found at compile time.
    (
        "SELECT regex_match(payload, '(a') AS a",
        "",
        Rejected("unclosed group"),
    ),
    (
        "SELECT jq('.a[', payload) AS a",
        "",
        Rejected("invalid jq program"),
    ),
    (
        "SELECT jq('import \"a\" as $a; $a', payload) AS a",
        "",
        Rejected("there are no modules"),
    ),
    ("SELECT int('abc') AS a", "", Rejected("expected a number")),
    (
        "SELECT format_date('second', '+99:00', '%Y') AS a",
        "",
        Rejected("time zone"),
    ),
    (
        "SELECT date_to_unix_ts('second', '%m-%d', payload) AS a",
        "",
        Rejected("lacks the year"),
    ),
    (
        "SELECT datetime(timestamp, 'Europe/Nowhere') AS a",
        "",
        Rejected("time zone"),
    ),
    ("SELECT 1 div 0 AS a", "", Rejected("not a number")),
    // Dates.
    (
        "SELECT date_to_unix_ts('second', '%Y-%m-%d %H-%M-%S', '2022-05-26 10:40:12') AS a",
        "",
        Out(&[r#"{"a":1653561612}"#]),
    ),
    (
        "SELECT date_to_unix_ts('second', '%Y-%m-%d %H:%M:%S', '2022-05-26 10-40-12') AS a",
        "",
        Out(&[r#"{"a":1653561612}"#]),
    ),
    (
        "SELECT date_to_unix_ts('second', '+08:00', '%Y-%m-%d %H:%M:%S', payload) AS a",
        "2024-02-29 14:31:40",
        Out(&[r#"{"a":1709188300}"#]),
    ),
    (
        "SELECT date_to_unix_ts('second', '%Y-%m-%d %H:%M:%S', payload) AS a",
        "2023-02-29 10:40:12",
        Error("invalid"),
    ),
];

/// The same in FluxMQ's dialect, where it differs, and the additions of its manual.
const FLUXMQ: &[(&str, &str, StatementResult)] = &[
    ("SELECT payload.a as a", "not JSON", Out(&[r#"{"a":null}"#])),
    ("SELECT topic as t WHERE payload.null != 5", NULLS, Out(&[])),
    (
        "SELECT isNull(payload.none) as a, isNull(payload.null) as b, payload.none = payload.nothing as c",
        NULLS,
        Out(&[r#"{"a":true,"b":true,"c":false}"#]),
    ),
    (
        "SELECT payload.one in ('1') as a, CASE payload.one WHEN '1' THEN 'text' END as b",
        NULLS,
        Out(&[r#"{"a":true,"b":"text"}"#]),
    ),
    (
        "SELECT str(payload.none) as a, concat('x', payload.none) as b",
        NULLS,
        Out(&[r#"{"a":null,"b":null}"#]),
    ),
    (
        "SELECT ifNull(payload.null, 7) as a, coalesce(payload.null, 8) as b",
        NULLS,
        Out(&[r#"{"a":7,"b":8}"#]),
    ),
    (
        "SELECT payload.none + 1 as a, -payload.none as b, upper(payload.none) as c, payload.one != payload.text as d",
        NULLS,
        Out(&[r#"{"a":null,"b":null,"c":null,"d":true}"#]),
    ),
    (
        "SELECT topic as t WHERE topic = \"t/a\"",
        "",
        Out(&[r#"{"t":"t/a"}"#]),
    ),
    (
        "SELECT payload.x[2].y",
        ARRAY,
        Out(&[r#"{"payload":{"x":{"y":[1, 2]}}}"#]),
    ),
    (
        "SELECT topic.startsWith('a', 2) as a, topic.startsWith('a') as b, topic.indexOf('a', 1) as c, topic.indexOf('t', 1) as d",
        "",
        Out(&[r#"{"a":true,"b":false,"c":2,"d":-1}"#]),
    ),
    (
        "SELECT topic.compareTo('t/b') as a, 'b'.compareTo('abc') as b, 'abc'.compareTo('ab') as c",
        "",
        Out(&[r#"{"a":-1,"b":1,"c":1}"#]),
    ),
    (
        "SELECT '  '.isBlank() as a, topic.isBlank() as b, 'a1b2'.replaceFirst('[0-9]', '-') as c, 'ab'.toCharArray() as d",
        "",
        Out(&[r#"{"a":true,"b":false,"c":"a-b2","d":["a","b"]}"#]),
    ),
    (
        "SELECT lastIndexOf('hello hello', 'ello', 6) as a, indexOf([1, 2, 1], 1, 1) as b",
        "",
        Out(&[r#"{"a":1,"b":2}"#]),
    ),
    (
        "SELECT clientId as c WHERE clientId =~ '[a-z'",
        "",
        Rejected("regular expression"),
    ),
];

fn check(cases: &[(&str, &str, StatementResult)], options: &CompileOptions, source: &str) {
    let mut wrong = Vec::new();
    for (sql, payload, expected) in cases {
        // FROM precedes WHERE, and the cases omit it.
        let sql = match sql.split_once(" WHERE ") {
            Some((head, filter)) => format!("{head} FROM {source} WHERE {filter}"),
            None => format!("{sql} FROM {source}"),
        };
        let compiled = compile(&sql, options);
        let given = match (&compiled, expected) {
            (Err(error), Rejected(part)) if error.to_string().contains(part) => continue,
            (Err(error), _) => error.report(),
            (Ok(rule), expected) => match (try_run(rule, &publish("t/a", payload)), expected) {
                (Ok(outputs), Out(expected)) if outputs == **expected => continue,
                (Err(fault), Error(kind)) if fault.kind() == *kind => continue,
                (Ok(outputs), _) => format!("gives {outputs:?}"),
                (Err(fault), _) => format!("{} fault: {fault}", fault.kind()),
            },
        };
        let expected = match expected {
            Out(outputs) => format!("{outputs:?}"),
            Error(kind) => format!("a fault {kind}"),
            Rejected(part) => format!("an error with {part:?}"),
        };
        wrong.push(format!(
            "{sql}\n  of {payload}\n  {given}\n  not {expected}"
        ));
    }
    assert!(
        wrong.is_empty(),
        "{} of {} cases:\n{}",
        wrong.len(),
        cases.len(),
        wrong.join("\n")
    );
}

#[test]
fn emqx_cases() {
    let options = CompileOptions {
        dialect: Some(Dialect::Emqx),
        ..CompileOptions::default()
    };
    check(EMQX, &options, "\"t/#\"");
}

#[test]
fn fluxmq_cases() {
    check(FLUXMQ, &fluxmq(), "\"$EVENT.PUBLISH\"");
}

#[test]
fn sources_need_no_quotes() {
    for (sql, expected) in [
        ("SELECT 1 AS v FROM t/#", "t/#"),
        (
            "SELECT 1 AS v FROM t/+/x, $EVENT.PUBLISH WHERE qos = 1",
            "t/+/x $EVENT.PUBLISH",
        ),
        ("select 1 as v from topic", "topic"),
        ("SELECT 1 AS v FROM # WHERE topic = 'a'", "#"),
        ("SELECT 1 AS v FROM t/# -- all\nWHERE qos = 1", "t/#"),
        (
            "SELECT 1 AS v FROM \"t/#\", $events/session/+;",
            "t/# $EVENT.SUBSCRIBE $EVENT.UNSUBSCRIBE",
        ),
        (
            "SELECT 1 AS v FROM $EVENT.RULE_FAILED",
            "$EVENT.RULE_FAILED",
        ),
    ] {
        let rule = compile(sql, &CompileOptions::default())
            .unwrap_or_else(|error| panic!("{}", error.report()));
        let sources: Vec<_> = rule.sources().iter().map(ToString::to_string).collect();
        assert_eq!(sources.join(" "), expected, "{sql}");
        assert_eq!(
            rule.index_keys().qos.is_some(),
            sql.contains("qos = 1"),
            "{sql}"
        );
    }
    for sql in [
        "SELECT 1 FROM",
        "SELECT 1 FROM WHERE qos = 1",
        "SELECT 1 FROM -- t",
        "SELECT 1 FROM (",
    ] {
        assert!(compile(sql, &CompileOptions::default()).is_err(), "{sql}");
    }
}

#[test]
fn probable_mistakes_are_warnings() {
    let warnings = |sql: &str| -> Vec<String> {
        let rule = compile(sql, &CompileOptions::default())
            .unwrap_or_else(|error| panic!("{}", error.report()));
        rule.warnings().iter().map(ToString::to_string).collect()
    };
    for (sql, part) in [
        (
            "SELECT 1 FROM \"#\" WHERE topic LIKE 'sensor/+/data'",
            "column 36: LIKE treats `+` and `#` literally here, only `%` and `_` are wildcards; did you mean =~ 'sensor/+/data'?",
        ),
        (
            "SELECT 1 FROM \"$EVENT.PUBLISH\" WHERE payload.t LIKE 'a/#'",
            "did you mean =~ 'a/#'?",
        ),
        (
            "SELECT percentile(qos, 0.95) AS p FROM \"#\" GROUP BY tumbling(1s)",
            "did you mean 95?",
        ),
        ("SELECT 1 FROM \"#\" WHERE topic = \"t/a\"", "write 't/a'"),
        (
            "SELECT avg(payload.t) AS t FROM \"t/#\"",
            "column 8: without a window, `avg` evaluates the items of one array; to aggregate events, add GROUP BY",
        ),
    ] {
        let found = warnings(sql);
        assert!(
            found.len() == 1 && found[0].contains(part),
            "{sql}: {found:?}"
        );
    }
    for sql in [
        "SELECT 1 FROM \"#\" WHERE topic LIKE 'sensor/%'",
        "SELECT 1 FROM \"#\" WHERE payload LIKE 'a+b'",
        "SELECT 1 FROM \"#\" WHERE topic LIKE 'a/#/b'",
        "SELECT 1 FROM \"$EVENT.PUBLISH\" WHERE topic LIKE 'a_1/+'",
        "SELECT percentile(qos, 95) AS p FROM \"#\" GROUP BY tumbling(1s)",
        "SELECT avg(payload.t) AS t FROM \"#\" GROUP BY tumbling(1s)",
        "SELECT avg([1, qos]) AS t, max(qos, 1) AS m, avg(split(topic, '/')) AS p FROM \"#\"",
        "SELECT 1 FROM \"$EVENT.PUBLISH\" WHERE topic = \"t/a\"",
        "SELECT 1 FROM \"#\" WHERE \"topic\" = 't/a'",
    ] {
        assert_eq!(warnings(sql), Vec::<String>::new(), "{sql}");
    }
}
