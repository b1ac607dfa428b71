//! Error messages for invalid statements.

use rules::{CompileOptions, compile};

#[test]
fn reports() {
    let statements = [
        "SELEC * FROM \"t\"",
        "",
        "SELECT * FORM \"t\"",
        "SELECT * FROM WHERE",
        "SELECT a, FROM \"t\"",
        "SELECT toppic FROM \"$EVENT.PUBLISH\"",
        "SELECT temperature FROM \"t\"",
        "SELECT datatime(timestamp) FROM \"$EVENT.PUBLISH\"",
        "SELECT *\nFROM \"$EVENT.PUBLISHED\"\nWHERE 1 = 1",
        "SELECT * FROM \"t/#/a\"",
        "SELECT * FROM \"t\" WHERE topic =~ 't/#/a'",
        "SELECT * FROM \"t\" WHERE (payload.a > 1",
        "SELECT * FROM \"t\" WHERE payload.a > 'abc",
        "SELECT * FROM \"t\" WHERE payload.a[0] = 1",
        "SELECT * FROM \"t\" WHERE payload.a not 5",
        "SELECT * FROM \"t\" WHERE payload.a is 5",
        "SELECT * FROM \"t\" WERE payload.a = 5",
        "SELECT * FROM \"t\" ORDER BY topic",
        "SELECT * FROM \"t\" WHERE a ! b",
        "SELECT ‘a’ FROM \"t\"",
        "SELECT 99999999999999999999 FROM \"t\"",
        "SELECT CASE WHEN 1 THEN 2 FROM \"t\"",
        "SELECT (SELECT 1) FROM \"t\"",
        "SELECT count(*) FROM \"t\"",
        "SELECT topic FROM \"t\" GROUP BY topic",
        "SELECT topic, qos FROM \"t\" GROUP BY topic tumbling(10s)",
        "SELECT topic FROM \"t\" GROUP BY topic tumbling(10)",
        "SELECT topic FROM \"t\" GROUP BY topic hopping(10s, 1m)",
        "SELECT topic FROM \"t\" HAVING qos = 1",
        "SELECT percentile(qos, 101) FROM \"t\" GROUP BY count(5)",
        "SELECT /* no end FROM \"t\"",
        "SELECT abs(1, 2) FROM \"t\"",
        "FOREACH * FROM \"t\"",
        "SELECT * FROM \"$rule/\"",
        "SELECT * FROM \"t\" 5",
        "SELECT * FROM \"t\" LIMIT 0",
    ];
    let mut reports = String::new();
    for sql in statements {
        let error = compile(sql, &CompileOptions::default())
            .err()
            .unwrap_or_else(|| panic!("accepted: {sql}"));
        reports.push_str(&error.report());
        reports.push_str("\n\n");
    }
    insta::assert_snapshot!(reports);
}

#[test]
fn the_manual_shows_the_real_error_message() {
    let manual = include_str!("../../../../docs/reference/rules.md");
    let sql = "SELECT datatime(timestamp) FROM \"$EVENT.PUBLISH\"";
    let report = compile(sql, &CompileOptions::default())
        .err()
        .expect("there is no such function")
        .report();
    assert!(
        manual.contains(&format!("```\n{report}\n```")),
        "docs/reference/rules.md does not show\n{report}"
    );
}
