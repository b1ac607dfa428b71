//! What is secret is in no log, however much is logged.

use serde_json::json;

use super::web_server::serve;
use super::{SUCCESS, WRONG, hashed, login};
use crate::support::{Node, temporary_directory};

#[test]
fn no_secret_is_in_the_log() {
    let file = temporary_directory().join("passwords");
    let hash = hashed("right-s3cret");
    std::fs::write(&file, format!("ann:{hash}\n")).unwrap();
    let address = serve(|_| (200, json!({"result": "ignore"}).to_string()));
    let config = format!(
        "[log]\nlevel = \"trace\"\n\
         [[auth.authenticator]]\ntype = \"password_file\"\npath = \"{}\"\n\
         [[auth.authenticator]]\ntype = \"jwt\"\nsecret = \"jwt-s3cret\"\n\
         [[auth.authenticator]]\ntype = \"http\"\nurl = \"http://{address}/\"\nheaders = {{ x-key = \"header-s3cret\" }}\n\
         [[auth.authenticator]]\ntype = \"mysql\"\nserver = \"127.0.0.1:1\"\nusername = \"u\"\n\
         password = \"mysql-s3cret\"\nquery = \"SELECT password_hash FROM u WHERE n = ${{username}}\"\n\
         [[auth.authenticator]]\ntype = \"redis\"\nserver = \"127.0.0.1:1\"\npassword = \"redis-s3cret\"\n\
         query = \"HGET u:${{username}} password_hash\"\n\
         [[auth.authenticator]]\ntype = \"postgres\"\nserver = \"127.0.0.1:1\"\nusername = \"u\"\n\
         password = \"postgres-s3cret\"\nquery = \"SELECT password_hash FROM u WHERE n = ${{username}}\"\n",
        file.display()
    );
    let node = Node::start_with_config(&[], &config);
    assert_eq!(login(&node, "ann", "right-s3cret"), SUCCESS);
    assert_eq!(login(&node, "ann", "wrong-s3cret"), WRONG);
    assert_ne!(login(&node, "bob", "other-s3cret"), SUCCESS);
    assert_ne!(
        login(&node, "bob", "eyJhbGciOiJIUzI1NiJ9.e30.s3cret"),
        SUCCESS
    );
    let log = node.log();
    assert!(log.contains("rejected"), "it logs:\n{log}");
    let lines = log.lines().filter(|line| line.contains("s3cret"));
    let lines: Vec<_> = lines.collect();
    assert!(lines.is_empty(), "{lines:?}");
    assert!(!log.contains(&hash), "{log}");
}
