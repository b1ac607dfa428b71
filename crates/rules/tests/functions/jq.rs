//! jq programs: their results, and their limits.

use rules::{Dialect, Zone, json};

use crate::expression::evaluate;

fn jq(program: &str, input: &str) -> Result<String, String> {
    let quote = if program.contains('\'') { '"' } else { '\'' };
    let expression = format!("jq({quote}{program}{quote}, '{input}')");
    evaluate(
        &expression,
        Dialect::Emqx,
        &Zone::UTC,
        |arena, value| match value {
            Ok(value) => Ok(json::text(&value, arena).to_owned()),
            Err(fault) => Err(fault.to_string()),
        },
    )
}

fn jq_with_timeout(program: &str, timeout_ms: u32) -> Result<String, String> {
    let expression = format!("jq('{program}', 'null', {timeout_ms})");
    let text =
        |arena: &rules::Arena, value: Result<rules::Value<'_>, rules::EvaluationError>| match value
        {
            Ok(value) => Ok(json::text(&value, arena).to_owned()),
            Err(fault) => Err(fault.to_string()),
        };
    evaluate(&expression, Dialect::Emqx, &Zone::UTC, text)
}

/// Random combinations of program parts: each gives a result or an error, and none panics.
#[test]
fn no_program_makes_the_interpreter_panic() {
    const PIECES: &[&str] = &[
        ".",
        "..",
        ".a",
        ".[0]",
        ".[]",
        ".[1:]",
        ".a?",
        "$x",
        "$__loc__",
        "$ENV",
        "@base64d",
        "@json \"a\\(1)\"",
        "@text",
        "def f: ",
        "def f(g): ",
        "f",
        "f(.)",
        "f(1; 2)",
        "g",
        ";",
        "|",
        ",",
        "//",
        "and",
        "or",
        "not",
        "=",
        "|=",
        "+=",
        "-",
        "*",
        "/",
        "%",
        "==",
        "<",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        "{a: 1}",
        "{(.a): 2}",
        "\"s\\(.)\"",
        "\"",
        "\\u0000",
        "1",
        "-1",
        "1e308",
        "99999999999999999999",
        "null",
        "if . then",
        "elif",
        "else",
        "end",
        "try",
        "catch",
        "error",
        "empty",
        "reduce .[] as $x (0;",
        "foreach .[] as [$x] (0; . + 1)",
        "as $x",
        "as {a: $x}",
        "?// $y",
        "label $out",
        "break $out",
        "import \"a\" as $a;",
        "import \"a\" as a;",
        "include \"a\";",
        "module {};",
        "a::b",
        "$a::b",
        "limit(3; repeat(1))",
        "path(..)",
        "paths",
        "getpath([\"a\"])",
        "setpath([0]; 1)",
        "delpaths([[0]])",
        "to_entries",
        "ltrimstr(1)",
        "splits(\"\")",
        "test(\"(\")",
        "gsub(\"\"; \"x\")",
        "implode",
        "explode",
        "tojson",
        "fromjson",
        "ascii",
        "range(1; 0; -1)",
        "range(1; 5; 0)",
        "input",
        "inputs",
        "debug",
        "stderr",
        "halt",
        "halt_error",
        "env",
        "now",
        "mktime",
        "strftime(\"%Y\")",
        "todate",
        "limit(-1; .)",
        "first(empty)",
        "nth(-1; .)",
        "until(false; .)",
        "walk(.)",
        "tostream",
        "fromstream(tostream)",
        "splits(\"a\"; null)",
        "ascii_downcase",
        "@uri",
        "input_line_number",
        "getpath(1)",
        "$__prog_args",
        "reduce",
        "# x\n",
    ];
    let mut rng = rules::Rng::new([11; 32]);
    for _ in 0..4_000 {
        let count = 1 + rng.next_below(7);
        let pieces = (0..count).map(|_| PIECES[rng.next_below(PIECES.len() as u64) as usize]);
        let program = pieces.collect::<Vec<_>>().join(" ");
        let call = functions_jq(&program);
        assert!(!call.contains("the interpreter"), "{program}: {call}");
    }
}

/// The result of a program called directly, without the quoting of a statement.
fn functions_jq(program: &str) -> String {
    let arena = rules::Arena::new();
    let mut resources = rules::EvaluationResources::new([7; 32], 1);
    let mut kv = rules::KvStore::default();
    let limits = rules::FunctionLimits {
        jq_steps: 2_000,
        ..rules::FunctionLimits::default()
    };
    let mut context = rules::FunctionContext {
        arena: &arena,
        resources: &mut resources,
        kv: &mut kv,
        message: None,
        zone: &Zone::UTC,
        dialect: Dialect::Emqx,
        now_ms: 0,
        limits,
    };
    let input = rules::Value::Json("{\"a\":[1,{\"b\":null}],\"s\":\"x\"}");
    let function = rules::functions::find("jq").expect("a function");
    match function.call(&mut context, &[rules::Value::Str(program), input]) {
        Ok(value) => json::text(&value, &arena).to_owned(),
        Err(fault) => fault.to_string(),
    }
}

#[test]
fn programs_give_the_same_output_as_jq() {
    let mut wrong = Vec::new();
    for (program, input, expected) in [
        (".", r#"{"b": 2}"#, r#"[{"b":2}]"#),
        (".+1", "5", "[6]"),
        (".a, .b", r#"{"a":1,"b":[2]}"#, "[1,[2]]"),
        (
            ".[] | select(.t > 20) | .id",
            r#"[{"id":"a","t":21},{"id":"b","t":3}]"#,
            r#"["a"]"#,
        ),
        ("map(. * 2) | add", "[1,2,3]", "[12]"),
        (
            "to_entries | map(.key)",
            r#"{"z":1,"a":2}"#,
            r#"[["z","a"]]"#,
        ),
        ("keys", r#"{"z":1,"a":2}"#, r#"[["a","z"]]"#),
        (
            "with_entries(.value += 1)",
            r#"{"a":1,"b":2}"#,
            r#"[{"a":2,"b":3}]"#,
        ),
        (".a.b.c = 1", "null", r#"[{"a":{"b":{"c":1}}}]"#),
        ("del(.a)", r#"{"a":1,"b":2}"#, r#"[{"b":2}]"#),
        (".[1:3], .[-1], .[9]", "[1,2,3,4]", "[[2,3],4,null]"),
        (".[2] = 7", "[1]", "[[1,null,7]]"),
        (
            "[range(0;10;3)], [range(3)], [range(3;0;-1)]",
            "null",
            "[[0,3,6,9],[0,1,2],[3,2,1]]",
        ),
        ("length, utf8bytelength", "\"höher\"", "[5,6]"),
        (
            "split(\",\"), ascii_upcase, test(\"b\")",
            "\"a,b\"",
            r#"[["a","b"],"A,B",true]"#,
        ),
        (
            "[match(\"[0-9]+\"; \"g\").string], gsub(\"[0-9]\"; \"#\")",
            "\"a1b22\"",
            r##"[["1","22"],"a#b##"]"##,
        ),
        (
            "capture(\"(?<y>[0-9]+)-(?<m>[0-9]+)\")",
            "\"2021-05\"",
            r#"[{"y":"2021","m":"05"}]"#,
        ),
        (
            "[.[] | tostring], (.[0] | tojson)",
            "[{\"a\":1},\"x\"]",
            r#"[["{\"a\":1}","x"],"{\"a\":1}"]"#,
        ),
        (
            "\"v=\\(.v)\", @base64 \"\\(.v)\", @json",
            r#"{"v":7}"#,
            r#"["v=7","Nw==","{\"v\":7}"]"#,
        ),
        ("@csv", r#"[1,"a b",null]"#, r#"["1,\"a b\","]"#),
        (
            "(group_by(.a) | map(length)), (sort_by(-.a) | .[0].a), unique_by(.a | floor)",
            r#"[{"a":2},{"a":1},{"a":2}]"#,
            r#"[[1,2],2,[{"a":1},{"a":2}]]"#,
        ),
        (
            "reduce .[] as $x (0; . + $x), [foreach .[] as $x (0; . + $x)]",
            "[1,2,3]",
            "[6,[1,3,6]]",
        ),
        (
            "if . > 1 then \"big\" elif . == 1 then \"one\" else \"small\" end",
            "1",
            r#"["one"]"#,
        ),
        (
            "try error(\"no\") catch ., (.a? // \"none\")",
            "{}",
            r#"["no","none"]"#,
        ),
        (
            "[paths], [..]",
            r#"{"a":[1]}"#,
            r#"[[["a"],["a",0]],[{"a":[1]},[1],1]]"#,
        ),
        (
            "[limit(3; repeat(1))], first(range(5;9)), (label $out | 1, break $out, 2)",
            "null",
            "[[1,1,1],5,1]",
        ),
        (
            "4/2, 1/3*3, 7 % 3, -7 % 3, 1e3, 9007199254740993",
            "null",
            "[2,1,1,-1,1000.0,9007199254740993]",
        ),
        (
            "todate, (todate | fromdate)",
            "1425599621",
            r#"["2015-03-05T23:53:41Z",1425599621]"#,
        ),
        (
            "map_values(. + 1), (.a |= . * 10)",
            r#"{"a":1}"#,
            r#"[{"a":2},{"a":10}]"#,
        ),
        (
            "{a: {b: 1}} * {a: {c: 2}}, ([1,2,3] - [2]), (\"ab\" * 2), ({} + {a: 1})",
            "null",
            r#"[{"a":{"b":1,"c":2}},[1,3],"abab",{"a":1}]"#,
        ),
        ("nan, infinite | isnan", "null", "[true,false]"),
        ("[nan, 1] | sort", "null", "[[null,1]]"),
        ("type", "[]", r#"["array"]"#),
        (
            "walk(if type == \"number\" then . + 1 else . end)",
            "[1,[2]]",
            "[[2,[3]]]",
        ),
        (
            "tonumber, (\"x\" | try tonumber catch \"bad\")",
            "\"12\"",
            r#"[12,"bad"]"#,
        ),
        (
            "[1,2] | contains([2]), inside([1,2,3]), index(2), has(1), transpose?",
            "null",
            "[true,true,1,true]",
        ),
        ("empty", "1", "[]"),
    ] {
        let given = jq(program, input);
        if given.as_deref() != Ok(expected) {
            wrong.push(format!("{program}: {given:?}, not {expected}"));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn now_is_the_time_of_the_message() {
    assert_eq!(jq("now", "null").as_deref(), Ok("[1690599987.495]"));
}

#[test]
fn errors_are_described() {
    for (program, input, why) in [
        (".a[", "{}", "jq: invalid jq program: expected"),
        ("nonsense", "{}", "there is no filter nonsense"),
        (".a", "[1]", "cannot index [1] with \"a\""),
        (".", "{", "invalid JSON at byte 1"),
        ("halt", "1", "the program halted"),
        ("env", "1", "there is no filter env"),
        ("input", "1", "there is no filter input"),
        ("import \"a\" as a; .", "1", "there are no modules"),
        ("import \"a\" as $a; .", "1", "there are no modules"),
        ("import \"a\" as $a; $a", "1", "there are no modules"),
        (
            "import \"a\" as $a {search: \"/\"}; $a",
            "1",
            "there are no modules",
        ),
        ("include \"a\"; .", "1", "there are no modules"),
        (
            "module {}; import \"a\" as $a; $a",
            "1",
            "there are no modules",
        ),
    ] {
        let error = jq(program, input).expect_err(program);
        assert!(error.contains(why), "{program}: {error}");
    }
}

#[test]
fn programs_are_limited() {
    for (program, why) in [
        ("def f: f; f", "max_jq_steps"),
        ("def f: 1 + f; f", "recurses too deep"),
        ("def f: [f]; f", "recurses too deep"),
        ("[range(1000000000000)]", "t"),
        ("last(range(1000000000000))", "max_jq_steps"),
        ("[repeat(1)]", "t"),
        (
            "def w: if . < 42 then (. * 2 | w) else . end; -2 | w",
            "max_jq_steps",
        ),
        ("while(. < 42; . * 2)", "t"),
        ("\"x\" * 1000000000", "too large"),
        ("reduce range(60) as $i (\"x\"; . + .)", "too large"),
        (
            "reduce range(60) as $i (\"x\"; \"\\(.)\\(.)\")",
            "too large",
        ),
        ("reduce range(60) as $i (0; [., .])", "too large"),
        ("reduce range(100000) as $i (0; [.])", "nests too deep"),
        ("reduce range(60) as $i ([1]; . + .)", "too large"),
        (".[1000000000] = 1", "too large"),
        ("[limit(1000; repeat(\"x\" * 10000))]", "too large"),
        ("try (def f: f; f) catch 1", "max_jq_steps"),
        ("def f: try f catch f; f", "t"),
    ] {
        let error = jq(
            program,
            if program.contains("while") {
                "-2"
            } else {
                "null"
            },
        )
        .expect_err(program);
        assert!(error.contains(why), "{program}: {error}");
    }
    // A timeout only lowers the limit that all programs of one evaluation share; a call cannot raise it.
    let slow = jq_with_timeout("last(range(1000000000000))", 1).expect_err("it takes too long");
    assert!(slow.contains("timeout of 1 ms"), "{slow}");
    let slow = jq_with_timeout("last(range(1000000000000))", 1000).expect_err("it takes too long");
    assert!(slow.contains("rules.max_jq_steps"), "{slow}");
    assert!(jq(&"[".repeat(5000), "1").is_err());
    assert!(jq(&"-".repeat(5000), "1").is_err());
    // The next program is not affected.
    assert_eq!(jq(".", "1").as_deref(), Ok("[1]"));
}
