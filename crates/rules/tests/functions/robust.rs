//! No function panics on any arguments, and every name in the description of the language exists.

use rules::{
    Arena, Dialect, EvaluationResources, FunctionContext, FunctionLimits, KvStore, Rng, Value,
    Zone, functions, json,
};

/// Values that are likely to break functions.
fn nasty(arena: &Arena) -> Vec<Value<'_>> {
    let parse = |text| json::parse(text, arena).expect("valid");
    let mut values = vec![
        Value::Null,
        Value::Bool(true),
        Value::Bytes(b""),
        Value::Bytes(b"\xff\xfe\x00"),
        Value::Bytes(b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x13"),
        Value::Json("[1,{\"a\":[]},\"x\"]"),
        Value::Json("{\"a\":{\"b\":null},\"a\":2}"),
        parse("[]"),
        parse("{}"),
        parse("[[1,2],[1,2],{\"a\":1},null,1,1.0,\"1\"]"),
        parse("{\"topic\":\"t/+\",\"\":[0]}"),
    ];
    let ints = [
        0,
        1,
        -1,
        2,
        3,
        8,
        64,
        255,
        1_000_000,
        1_690_599_987_495,
        i64::MAX,
        i64::MIN,
    ];
    values.extend(ints.map(Value::Int));
    let floats = [
        0.0,
        -0.0,
        0.5,
        -2.5,
        1e15,
        1e300,
        -1e300,
        5e-324,
        f64::INFINITY,
        f64::NAN,
    ];
    values.extend(floats.map(Value::Float));
    values.extend(
        [
            "",
            " ",
            "a",
            "höher 😀",
            "0",
            "-7",
            "1e400",
            "0x",
            "%Y-%m-%d %H:%M:%S.%3N%::z",
            "yyyy-MM-dd'T'HH:mm:ss.SSSXXX''G",
            "2024-02-29 23:59:60+08:00",
            "2023-07-29",
            "11:06:27.495",
            "Europe/Berlin",
            "+08:20:30",
            "second",
            "nanosecond",
            "leading",
            "trailing",
            "both",
            "notrim",
            "integer",
            "float",
            "bits",
            "signed",
            "little",
            "urlsafe",
            "nocrlf",
            "desc",
            "sha256",
            "(a+)+$",
            "(",
            "[",
            "\\x",
            "\\",
            "~p~10.2f~*c~",
            "{0}{}{",
            "$..a[*]['b'][-1:2]",
            "$[",
            "a.b.c",
            "/",
            "t/#",
            "&lt;&#x1F600;&#xFFFFFFFF;&",
            "%41%",
            "+%C3%B6",
            "aGVsbG8",
            "{\"a\":[1,2,{\"b\":null}]}",
            "[3,1,2]",
            ".[] | .a?",
            "9F4E58",
        ]
        .map(Value::Str),
    );
    values
}

#[test]
fn no_arguments_make_a_function_panic() {
    let arena = Arena::new();
    let pool = nasty(&arena);
    let mut rng = Rng::new([3; 32]);
    let zone = Zone::parse("America/St_Johns").expect("a bundled zone");
    let mut resources = EvaluationResources::new([7; 32], 1);
    let mut kv = KvStore::default();
    for function in functions::all() {
        for round in 0..1_500_u64 {
            let scratch = Arena::new();
            scratch.set_allocation_limit(Some(64 << 20));
            let most = function.max_args.min(function.min_args + 4);
            let count =
                function.min_args + rng.next_below((most - function.min_args + 1) as u64) as usize;
            let values: Vec<_> = (0..count)
                .map(|_| pool[rng.next_below(pool.len() as u64) as usize])
                .collect();
            let values: Vec<_> = values
                .iter()
                .map(|value| value.into_owned().to_value(&scratch))
                .collect();
            let mut context = FunctionContext {
                arena: &scratch,
                resources: &mut resources,
                kv: &mut kv,
                message: None,
                zone: &zone,
                dialect: if round % 2 == 0 {
                    Dialect::Emqx
                } else {
                    Dialect::Fluxmq
                },
                now_ms: rng.next_u64() >> rng.next_below(64),
                limits: FunctionLimits::default(),
            };
            if let Ok(value) = function.call(&mut context, &values) {
                let text = json::text(&value, &scratch);
                assert!(
                    json::check(text).is_ok(),
                    "{}{values:?} gives {text}",
                    function.name
                );
            }
        }
    }
}

#[test]
fn the_wrong_number_of_arguments_is_an_error() {
    let arena = Arena::new();
    let mut resources = EvaluationResources::new([7; 32], 1);
    let mut kv = KvStore::default();
    for function in functions::all() {
        let mut context = FunctionContext {
            arena: &arena,
            resources: &mut resources,
            kv: &mut kv,
            message: None,
            zone: &Zone::UTC,
            dialect: Dialect::Emqx,
            now_ms: 0,
            limits: FunctionLimits::default(),
        };
        let too_many = vec![Value::Int(1); function.max_args.min(9) + 1];
        if function.max_args < 9 {
            assert!(
                function.call(&mut context, &too_many).is_err(),
                "{}",
                function.name
            );
        }
        if function.min_args > 0 {
            assert!(
                function.call(&mut context, &[]).is_err(),
                "{}",
                function.name
            );
        }
    }
}

#[test]
fn a_small_compressed_payload_cannot_become_a_large_one() {
    let arena = Arena::new();
    let mut resources = EvaluationResources::new([7; 32], 1);
    let mut kv = KvStore::default();
    let zeros = vec![0; 1 << 20];
    for (compress, uncompress) in [
        ("gzip", "gunzip"),
        ("zip", "unzip"),
        ("zip_compress", "zip_uncompress"),
    ] {
        let mut call = |name, values: &[Value<'_>], max_output_bytes| {
            let mut context = FunctionContext {
                arena: &arena,
                resources: &mut resources,
                kv: &mut kv,
                message: None,
                zone: &Zone::UTC,
                dialect: Dialect::Emqx,
                now_ms: 0,
                limits: FunctionLimits {
                    max_output_bytes,
                    ..FunctionLimits::default()
                },
            };
            let values: Vec<_> = values
                .iter()
                .map(|value| value.into_owned().to_value(&arena))
                .collect();
            functions::find(name)
                .expect("a function")
                .call(&mut context, &values)
        };
        let small = call(compress, &[Value::Bytes(&zeros)], 1 << 20).expect("zeros compress well");
        assert!(small.as_bytes().is_some_and(|bytes| bytes.len() < 2_000));
        let fault = call(uncompress, &[small], 100_000).expect_err("a million bytes");
        assert_eq!(fault.kind(), "too_large");
    }
}

#[test]
fn every_documented_name_is_a_function() {
    const NAMES: &str = "
        str int8 int16 int32 int64 int float toFloat toDouble toBool bool toDecimal float2str hexStr hexToInt intToHex binToInt
        intToBin octToInt intToOct bin2hexstr hexstr2bin bytes str_utf8 str_utf16_le map
        length strlen upper lower trim ltrim rtrim reverse repeat find indexOf lastIndexOf replace replaceAll contains startsWith
        endsWith split tokens substring substr left right charAt concat format sprintf padLeft padRight pad ascii regex_match
        regex_replace regex_extract rm_prefix join_to_string unescape
        now currentDate currentTime currentDateTime date datetime time formatDate format_date date_to_unix_ts dateToTimestamp
        datetimeToTimestamp timeToTimestamp addYears addMonths addDays addHours addMinutes addSeconds year month day hour minute
        second weekday weekOfYear dayOfYear now_timestamp now_rfc3339 unix_ts_to_rfc3339 rfc3339_to_unix_ts
        timezone_to_offset_seconds
        abs max min round floor ceil truncate sqrt pow power exp log log2 log10 sin cos tan asin acos atan sinh cosh tanh asinh
        acosh atanh mod fmod random randomInt bitand bitor bitxor bitnot bitsl bitsr subbits bitsize bytesize
        md5 sha sha1 sha256 sha512 hash crc32 base64Encode base64Decode base64_encode base64_decode urlEncode urlDecode htmlEncode
        htmlDecode gzip gunzip zip unzip zip_compress zip_uncompress
        json json_encode json_decode parseJson jsonPath jsonKeys jsonValues jsonSize isJson isJsonArray isJsonObject jq
        arrayLength first last nth sublist sum avg maxArray minArray distinct sort map_new map_get map_put map_keys map_values
        map_to_entries map_size mget mput
        isNull isNotNull isEmpty isNotEmpty isNumber is_num is_int is_float isString isBoolean isArray isMap isBytes coalesce
        coalesce_ne ifNull ifCondition decode greatest least
        uuid uuidUpper uuidWithHyphen uuid_v4 uuid_v4_no_hyphen uuid_v7 snowflakeId nanoid
        topic payload qos flag clientid username clientip peerhost msgid contains_topic contains_topic_match
        kv_store_put kv_store_get kv_store_del";
    let missing: Vec<_> = NAMES
        .split_whitespace()
        .filter(|name| functions::find(name).is_none())
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn the_work_of_a_regular_expression_is_limited() {
    let arena = Arena::new();
    let mut resources = EvaluationResources::new([7; 32], 1);
    let mut kv = KvStore::default();
    let mut matches = |text: &str, pattern: &str| {
        let mut context = FunctionContext {
            arena: &arena,
            resources: &mut resources,
            kv: &mut kv,
            message: None,
            zone: &Zone::UTC,
            dialect: Dialect::Emqx,
            now_ms: 0,
            limits: FunctionLimits::default(),
        };
        let values = [
            Value::Str(arena.alloc_str(text)),
            Value::Str(arena.alloc_str(pattern)),
        ];
        functions::find("regex_match")
            .expect("a function")
            .call(&mut context, &values)
            .map(|value| value.is_truthy())
    };
    let long = "x".repeat(1 << 20);
    assert_eq!(matches(&long, "[0-9]+"), Ok(false));
    assert_eq!(matches(&long[..10_000], r"\w{1,20}-y"), Ok(false));
    let fault = matches(&long, r"\w{1,20}-y").expect_err("too long");
    assert_eq!(fault.kind(), "budget");
    assert!(fault.to_string().contains("expected at most"), "{fault}");
}

#[test]
fn compilations_per_event_are_limited() {
    let sql = "FOREACH payload AS p DO regex_match('a', p) AS m FROM \"#\"";
    let run = |patterns: usize| {
        let rule = rules::compile(sql, &rules::CompileOptions::default()).expect("a rule");
        let patterns: Vec<_> = (0..patterns).map(|n| format!("\"a{{{n}}}\"")).collect();
        let payload = format!("[{}]", patterns.join(","));
        let mut event = rules::RuleEvent::new(rules::EventKind::Publish, 0);
        event.topic = Some("t");
        event.payload = Some(payload.as_bytes());
        let scratch = rules::EvaluationScratch::new(EvaluationResources::new([7; 32], 1), 1 << 20);
        let view = scratch.view(&event, 0);
        let ran = rule.run(&view, &mut rules::RuleState::default(), &mut |_| {});
        ran.map_err(|fault| fault.to_string())
    };
    assert_eq!(run(32), Ok(rules::RunOutcome::Passed(32)));
    assert!(run(33).expect_err("too many").contains("at most 32"));
}
