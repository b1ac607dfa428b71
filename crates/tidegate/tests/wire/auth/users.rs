//! Users of the configuration and of a password file.

use super::{SUCCESS, WRONG, hashed, login};
use crate::support::{Connect, Node, Raw, eventually, temporary_directory, unique};

#[test]
fn users_of_a_password_file_get_in_and_a_changed_file_counts() {
    let folder = temporary_directory();
    let file = folder.join("passwords");
    let line = |name: &str, password: &str| format!("{name}:{}\n", hashed(password));
    // argon2id and bcrypt as other programs write them; the passwords are `password` and `U*U`.
    let others = "arg:$argon2id$v=19$m=65536,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc\n\
                  bcr:$2y$05$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW\n";
    std::fs::write(&file, line("ann", "pencil") + others).unwrap();
    let config = format!(
        // The test asks until the file is read again, which is a failed login each time.
        "[auth]\nmax_failed_logins_per_address = 0\n\
         [[auth.authenticator]]\ntype = \"password_file\"\npath = \"{}\"\n",
        file.display()
    );
    let node = Node::start_with_config(&[], &config);
    assert_eq!(login(&node, "ann", "pencil"), SUCCESS);
    assert_eq!(login(&node, "ann", "pen"), WRONG);
    assert_eq!(login(&node, "arg", "password"), SUCCESS);
    assert_eq!(login(&node, "bcr", "U*U"), SUCCESS);
    assert_eq!(login(&node, "bcr", "u*u"), WRONG);
    assert_eq!(login(&node, "bob", "pencil"), WRONG);
    std::fs::write(&file, line("bob", "pencil")).unwrap();
    eventually("the new file counts", || {
        login(&node, "bob", "pencil") == SUCCESS
    });
    assert_eq!(login(&node, "ann", "pencil"), WRONG);
}

#[test]
fn an_unknown_password_is_rejected_on_the_loopback_too() {
    let folder = temporary_directory();
    let file = folder.join("passwords");
    std::fs::write(&file, format!("ann:{}\n", hashed("pencil"))).unwrap();
    let config = format!(
        "[[auth.authenticator]]\ntype = \"password_file\"\npath = \"{}\"\n",
        file.display()
    );
    let node = Node::start_with_config(&[], &config);
    assert_eq!(login(&node, "eve", "x"), WRONG);
    // Who shows nothing comes in as the listener says.
    Raw::connect(&node, &Connect::new(5, unique("c")));
    Raw::connect(&node, &Connect::new(4, unique("c")));
}

#[test]
fn an_error_in_an_authenticator_is_reported_with_its_place() {
    let start_error = |config: &str| {
        Node::try_start(&[], config)
            .err()
            .expect("it does not start")
    };
    let message = start_error(
        "[auth]\ndefault_permission = \"deny\"\n[[auth.authenticator]]\ntype = \"oracle\"\n",
    );
    assert!(message.contains("tidegate.toml:3:"), "{message}");
    assert!(message.contains("type: expected \"users\""), "{message}");
    let message = start_error("[[auth.rule]]\npermission = \"allow\"\ntopic = \"a/#/b\"\n");
    assert!(
        message.contains("topics: ") && message.contains("'#'"),
        "{message}"
    );
    let message =
        start_error("[[auth.authenticator]]\ntype = \"password_file\"\npath = \"nowhere\"\n");
    assert!(message.contains("nowhere cannot be read"), "{message}");
    let message = start_error("[auth]\ndefault_permision = \"deny\"\n");
    assert!(
        message.contains("did you mean `auth.default_permission`?"),
        "{message}"
    );
}
