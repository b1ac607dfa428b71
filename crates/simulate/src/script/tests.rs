//! Hooks do what they promise, limits hold, and errors say where.

use super::*;

const LIMITS: ScriptLimits = ScriptLimits {
    max_steps: 1_000_000,
    max_memory_bytes: 8 << 20,
    max_stack_bytes: 256 << 10,
};

fn device() -> ScriptDevice<'static> {
    ScriptDevice {
        number: 3,
        index: 7,
        id: "m-7",
        fleet: "meters",
        messages: 2,
        state: r#"{"power":1.5}"#,
        now: 1_795_291_200_123,
    }
}

fn compile(text: &str) -> Result<ScriptPlan, String> {
    let source = ScriptSource {
        file: "meters.js".to_owned(),
        text: text.to_owned(),
        limits: LIMITS,
    };
    ScriptPlan::compile(source, None)
}

fn sandbox(text: &str) -> ScriptSandbox {
    ScriptSandbox::new(&compile(text).expect("well-formed").source, 1).expect("it loads")
}

fn message(payload: &str) -> ScriptMessage {
    ScriptMessage {
        topic: "t".to_owned(),
        payload: payload.to_owned(),
    }
}

/// The error of `onSend` with this body.
fn error_of(body: &str) -> String {
    let mut sandbox = sandbox(&format!(
        "function onSend(device, message) {{\n  {body}\n}}"
    ));
    let result = sandbox.call(ScriptHook::Send, &device(), Some(&message("{}")));
    result.expect_err("it fails").to_string()
}

#[test]
fn a_hook_changes_a_message_and_sees_the_device() {
    let mut sandbox = sandbox(
        "function onSend(device, message) {
           const values = parseJson(message.payload);
           device.set('sum', (device.get('sum') ?? 0) + values.x);
           message.topic = `site/${device.id}/${device.index}/${device.messages}`;
           message.payload = { sum: device.get('sum'), power: device.state.power, sign: md5('a') };
         }",
    );
    for sum in [5, 10] {
        let outcome = sandbox.call(ScriptHook::Send, &device(), Some(&message(r#"{"x": 5}"#)));
        let changed = outcome.unwrap().value.unwrap();
        assert_eq!(changed.topic, "site/m-7/7/2");
        let expected =
            format!(r#"{{"sum":{sum},"power":1.5,"sign":"0cc175b9c0f1b6a831c399e269772661"}}"#);
        assert_eq!(changed.payload, expected);
    }
    // Attributes belong to a device.
    let other = ScriptDevice {
        number: 4,
        ..device()
    };
    let outcome = sandbox.call(ScriptHook::Send, &other, Some(&message(r#"{"x": 1}"#)));
    assert!(
        outcome
            .unwrap()
            .value
            .unwrap()
            .payload
            .starts_with(r#"{"sum":1,"#)
    );
}

#[test]
fn results_replace_or_omit_messages_and_credentials() {
    let mut sandbox = sandbox(
        "function onSend(device, message) { return message.payload === 'skip' ? false : { payload: [1, 2] }; }
         function beforeConnect(device, options) { options.username = 'u|' + options.clientId; }",
    );
    let mut send = |payload: &str| {
        sandbox
            .call(ScriptHook::Send, &device(), Some(&message(payload)))
            .unwrap()
    };
    assert_eq!(send("skip").value, None);
    assert_eq!(send("").value, Some(message("[1,2]")));
    let options = ConnectOptions {
        client_id: "c".to_owned(),
        ..ConnectOptions::default()
    };
    let changed = sandbox
        .call(ScriptHook::Connect, &device(), Some(&options))
        .unwrap()
        .value
        .unwrap();
    assert_eq!(changed.username.as_deref(), Some("u|c"));
    assert_eq!((changed.client_id.as_str(), changed.password), ("c", None));
}

#[test]
fn hooks_ask_for_actions() {
    let mut sandbox = sandbox(
        "const onConnected = 1;
         function onMessage(device, message) {
           device.subscribe('a/#', 1);
           device.publish('b', { ok: true }, 1);
           device.publish('c', 'plain', 0, true);
           log('got', message.payload);
           device.disconnect();
         }",
    );
    assert!(!sandbox.defines(ScriptHook::Connected));
    let outcome = sandbox
        .call(ScriptHook::Message, &device(), Some(&message("x")))
        .unwrap();
    let publish = |topic: &str, payload: &str, qos, retain| ScriptAction::Publish {
        topic: topic.to_owned(),
        payload: payload.to_owned(),
        qos,
        retain,
    };
    assert_eq!(
        outcome.actions,
        [
            ScriptAction::Subscribe {
                filter: "a/#".to_owned(),
                qos: 1
            },
            publish("b", r#"{"ok":true}"#, 1, false),
            publish("c", "plain", 0, true),
            ScriptAction::Log {
                text: "got x".to_owned()
            },
            ScriptAction::Disconnect {},
        ]
    );
}

#[test]
fn endless_loops_end() {
    let error = error_of("while (true) {}");
    assert_eq!(
        error,
        "meters.js:1: onSend: ended after 1000000 steps; is there an endless loop? `max_steps` allows more"
    );
    // It cannot be caught.
    assert!(error_of("for (;;) { try { for (;;) {} } catch (e) {} }").contains("max_steps"));
    assert!(error_of("'a'.repeat(40).match(/(a+)+$b/)").contains("max_steps"));
    let error = compile("for (;;) {}").unwrap_err();
    assert!(error.starts_with("meters.js:1: ended after"), "{error}");
    // The next call has all steps again.
    let mut sandbox = sandbox("function onSend(d, m) { if (m.payload) for (;;) {} }");
    for _ in 0..3 {
        let ended = sandbox.call(ScriptHook::Send, &device(), Some(&message("x")));
        assert!(ended.is_err());
        sandbox
            .call(ScriptHook::Send, &device(), Some(&message("")))
            .unwrap();
    }
}

#[test]
fn memory_is_limited() {
    for flood in [
        "const all = []; for (;;) all.push(new Array(1000).fill(1));",
        "let text = 'x'; for (;;) text += text;",
        "'x'.repeat(1 << 28)",
        "new Array(1 << 27).fill(0)",
    ] {
        let error = error_of(flood);
        let is_limited = error.contains("max_memory_mib") || error.contains("string too long");
        assert!(
            is_limited && error.starts_with("meters.js:2: onSend: "),
            "{flood}: {error}"
        );
    }
    // What a call has used is free again for the next one.
    let mut sandbox = sandbox(
        "function onSend(d, m) { let t = 'x'; while (m.payload || t.length < 1e6) t += t; }",
    );
    for _ in 0..3 {
        assert!(
            sandbox
                .call(ScriptHook::Send, &device(), Some(&message("x")))
                .is_err()
        );
        sandbox
            .call(ScriptHook::Send, &device(), Some(&message("")))
            .unwrap();
    }
}

#[test]
fn recursion_is_limited() {
    let error = error_of("const f = (n) => f(n + 1) + 1; f(0);");
    assert_eq!(
        error,
        "meters.js:2: onSend: needs more than 262144 bytes of stack; is a recursion endless? `max_stack_kib` allows more"
    );
    assert!(
        error_of("let a = []; for (let i = 0; i < 2e4; i++) a = [a]; JSON.stringify(a)")
            .contains("max_stack")
    );
}

#[test]
fn errors_name_file_line_and_hook() {
    assert_eq!(
        error_of("message.nothing.at = 1;"),
        "meters.js:2: onSend: TypeError: cannot set property 'at' of undefined"
    );
    assert_eq!(
        error_of("throw 'no'"),
        "meters.js: onSend: it has thrown no"
    );
    assert_eq!(
        error_of("parseJson('{')").split_once(": ").unwrap().0,
        "meters.js:2"
    );
    assert!(error_of("for (let i = 0; i < 5000; i++) log(i);").contains("at most 1000 actions"));
    assert!(error_of("return { topic: {} };").contains("wrong fields"));
    let error = compile("function onSend( {\n").unwrap_err();
    assert!(
        error.starts_with("meters.js:") && error.contains("SyntaxError"),
        "{error}"
    );
    let error = compile("function onsend() {}").unwrap_err();
    assert!(
        error.contains("defines no hook; expected a function with one of the names beforeConnect"),
        "{error}"
    );
    let error = compile("function onTimer() {}").unwrap_err();
    assert!(error.contains("`timer`"), "{error}");
}

#[test]
fn the_host_cannot_be_reached() {
    let names = [
        "require",
        "process",
        "std",
        "os",
        "scriptArgs",
        "print",
        "console",
        "fetch",
        "load",
        "XMLHttpRequest",
        "setTimeout",
        "WebAssembly",
        "Atomics",
        "SharedArrayBuffer",
        "performance",
        "queueMicrotask",
        "Deno",
        "Worker",
        "navigator",
        "gc",
    ];
    let tests = names
        .map(|name| format!("if (typeof {name} !== 'undefined') found.push('{name}');"))
        .concat();
    let mut sandbox = sandbox(&format!(
        "function onSend(device, message) {{ const found = []; {tests} message.payload = found.join(); }}"
    ));
    let outcome = sandbox.call(ScriptHook::Send, &device(), Some(&message("")));
    assert_eq!(outcome.unwrap().value.unwrap().payload, "");
    assert!(
        compile("import * as std from 'std';")
            .unwrap_err()
            .contains("SyntaxError")
    );
    assert!(error_of("import('std').then(() => 1); for (;;) {}").contains("max_steps"));
}

#[test]
fn the_same_seed_yields_the_same_numbers() {
    let text = "function onSend(d, m) { m.payload = [Math.random(), randomInt(1, 6), randomFloat(2, 3)]; }";
    let plan = compile(text).unwrap();
    let draw = |seed| {
        let mut sandbox = ScriptSandbox::new(&plan.source, seed).unwrap();
        let outcome = sandbox.call(ScriptHook::Send, &device(), Some(&message("")));
        outcome.unwrap().value.unwrap().payload
    };
    assert_eq!(draw(1), draw(1));
    assert_ne!(draw(1), draw(2));
    let numbers: Vec<f64> = serde_json::from_str(&draw(1)).unwrap();
    assert!(
        (0.0..1.0).contains(&numbers[0])
            && (1.0..=6.0).contains(&numbers[1])
            && (2.0..3.0).contains(&numbers[2])
    );
}

#[test]
fn promises_are_not_awaited_and_take_no_memory() {
    let mut sandbox = sandbox(
        "async function later() { await 1; await 2; }
         function onSend(device, message) { later().then(() => log('late')); import('std').catch(() => {}); }",
    );
    for _ in 0..2000 {
        let outcome = sandbox.call(ScriptHook::Send, &device(), Some(&message("")));
        assert_eq!(outcome.unwrap().actions, []);
    }
}
