//! Both sides of SCRAM: the example of RFC 7677, unknown users and malformed messages.

use super::*;

// RFC 7677, section 3.
const CLIENT_NONCE: &str = "rOprNGfwEbeRWgbNEkqO";
const SERVER_NONCE: &str = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
const CLIENT_FIRST: &str = "n,,n=user,r=rOprNGfwEbeRWgbNEkqO";
const SERVER_FIRST: &str =
    "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
const CLIENT_FINAL: &str = "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
     p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";
const SERVER_FINAL: &str = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=";

fn rfc_credential() -> ScramCredential {
    let salt = BASE64.decode("W22ZaJ0SNY7soEsUEjb6gQ==").unwrap();
    ScramCredential::derive(b"pencil", salt, NonZeroU32::new(4096).unwrap())
}

fn decoy() -> DecoyCredentials {
    DecoyCredentials::new(b"secret", 4096)
}

fn rfc_server() -> ServerScram {
    ServerScram::with_nonce(SERVER_NONCE.into())
}

fn malformed<T: fmt::Debug>(result: Result<T, ScramError>) -> &'static str {
    match result {
        Err(ScramError::Malformed(what)) => what,
        other => panic!("expected a malformed message, got {other:?}"),
    }
}

#[test]
fn the_client_matches_the_rfc_7677_example() {
    let mut client =
        ClientScram::with_nonce(ScramHash::Sha256, "user", b"pencil", CLIENT_NONCE.into());
    assert_eq!(client.first(), CLIENT_FIRST.as_bytes());
    let answer = client.last(SERVER_FIRST.as_bytes()).unwrap();
    assert_eq!(String::from_utf8(answer).unwrap(), CLIENT_FINAL);
    client.finish(SERVER_FINAL.as_bytes()).unwrap();
}

#[test]
fn the_server_matches_the_rfc_7677_example() {
    let mut server = rfc_server();
    let challenge = server
        .first(CLIENT_FIRST.as_bytes(), &decoy(), |name| {
            (name == "user").then(rfc_credential)
        })
        .unwrap();
    assert_eq!(String::from_utf8(challenge).unwrap(), SERVER_FIRST);
    assert_eq!(server.username(), "user");
    let verdict = server.last(CLIENT_FINAL.as_bytes()).unwrap();
    assert_eq!(String::from_utf8(verdict).unwrap(), SERVER_FINAL);
}

#[test]
fn both_sides_agree_on_names_with_commas_and_a_generated_credential() {
    let credential = ScramCredential::generate("pä,ss".as_bytes(), 0).unwrap();
    assert_eq!(credential.iterations(), MIN_ITERATIONS);
    let mut client = ClientScram::new(ScramHash::Sha256, "a=b,ü", "pä,ss".as_bytes()).unwrap();
    let mut server = ServerScram::new().unwrap();
    let challenge = server
        .first(&client.first(), &decoy(), |name| {
            assert_eq!(name, "a=b,ü");
            Some(credential)
        })
        .unwrap();
    let proof = client.last(&challenge).unwrap();
    client.finish(&server.last(&proof).unwrap()).unwrap();
}

#[test]
fn a_wrong_password_and_an_unknown_user_look_the_same() {
    for known in [true, false] {
        let mut client = ClientScram::new(ScramHash::Sha256, "user", b"pen").unwrap();
        let mut server = ServerScram::new().unwrap();
        let challenge = server
            .first(&client.first(), &decoy(), |_| known.then(rfc_credential))
            .unwrap();
        let proof = client.last(&challenge).unwrap();
        assert_eq!(server.last(&proof), Err(ScramError::BadCredentials));
    }
}

#[test]
fn an_unknown_user_always_gets_the_same_salt_of_the_usual_length() {
    let challenge = |name: &str| {
        let first = format!("n,,n={name},r=abc");
        let answer = rfc_server()
            .first(first.as_bytes(), &decoy(), |_| None)
            .unwrap();
        String::from_utf8(answer).unwrap()
    };
    assert_eq!(challenge("ann"), challenge("ann"));
    assert_ne!(challenge("ann"), challenge("bob"));
    assert_eq!(
        challenge("ann").len(),
        SERVER_FIRST.len() - CLIENT_NONCE.len() + 3
    );
}

#[test]
fn a_message_out_of_order_ends_the_exchange() {
    let mut server = rfc_server();
    let early = server.last(CLIENT_FINAL.as_bytes());
    assert!(matches!(early, Err(ScramError::OutOfOrder(_))));
    let late = server.first(CLIENT_FIRST.as_bytes(), &decoy(), |_| None);
    assert!(matches!(late, Err(ScramError::OutOfOrder(_))));

    let mut client =
        ClientScram::with_nonce(ScramHash::Sha256, "user", b"pencil", CLIENT_NONCE.into());
    assert!(matches!(
        client.finish(SERVER_FINAL.as_bytes()),
        Err(ScramError::OutOfOrder(_))
    ));
}

#[test]
fn malformed_first_messages_name_the_field() {
    let first = |message: &[u8]| rfc_server().first(message, &decoy(), |_| None);
    let cases: [(&[u8], &str); 11] = [
        (b"", "client-first must begin with n, or y,"),
        (b"x,,n=u,r=1", "client-first must begin with n, or y,"),
        (b"n,", "client-first ends within its header"),
        (b"n,,m=x,n=u,r=1", "m= asks for an unknown extension"),
        (b"n,,u=u,r=1", "n= must follow the header"),
        (b"n,,n=,r=1", "the user name is empty"),
        (b"n,,n=a=3d,r=1", "a lone = in the user name"),
        (b"n,,n=u", "r= must follow n="),
        (
            b"n,,n=u,r=",
            "the nonce r= must be 1 to 256 printable ASCII characters",
        ),
        (b"n,a=w,n=u,r=1", "a= must be the same user as n="),
        (b"n,,n=\xff,r=1", "not UTF-8"),
    ];
    for (message, what) in cases {
        assert_eq!(malformed(first(message)), what);
    }
    assert_eq!(
        first(b"p=tls-exporter,,n=u,r=1"),
        Err(ScramError::ChannelBinding)
    );
    assert!(first(b"n,a=u,n=u,r=1").is_ok());
    assert!(first(&vec![b'n'; MAX_MESSAGE_BYTES + 1]).is_err());
}

#[test]
fn malformed_final_messages_name_the_field() {
    let last = |message: &str| {
        let mut server = rfc_server();
        server
            .first(
                CLIENT_FIRST.as_bytes(),
                &decoy(),
                |_| Some(rfc_credential()),
            )
            .unwrap();
        server.last(message.as_bytes())
    };
    let proof = "p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";
    let nonce = format!("{CLIENT_NONCE}{SERVER_NONCE}");
    assert_eq!(
        malformed(last(&format!("c=biws,r={nonce}"))),
        "client-final has no proof p="
    );
    assert_eq!(
        malformed(last(&format!("c=biws,r={nonce},p=AAAA"))),
        "the proof p= must be 32 bytes in base64"
    );
    assert_eq!(
        malformed(last(&format!("c=eSws,r={nonce},{proof}"))),
        "c= does not repeat the header of client-first"
    );
    assert_eq!(
        malformed(last(&format!("c=biws,r={CLIENT_NONCE},{proof}"))),
        "r= is not the nonce of the challenge"
    );
}

#[test]
fn the_client_trusts_no_server_that_does_not_know_the_password() {
    let answer = |server_first: &str| {
        ClientScram::with_nonce(ScramHash::Sha256, "user", b"pencil", CLIENT_NONCE.into())
            .last(server_first.as_bytes())
    };
    assert_eq!(
        malformed(answer("r=other,s=QUJD,i=4096")),
        "r= does not extend the client's nonce"
    );
    assert_eq!(
        malformed(answer(&format!("r={CLIENT_NONCE},s=QUJD,i=4096"))),
        "r= does not extend the client's nonce"
    );
    assert_eq!(
        malformed(answer(&format!("r={CLIENT_NONCE}x,s=QUJD,i=1"))),
        "the iterations i= must be from 4096 to 1000000"
    );
    assert_eq!(
        malformed(answer(&format!("r={CLIENT_NONCE}x,s=QUJD,i=4294967295"))),
        "the iterations i= must be from 4096 to 1000000"
    );
    let finish = |server_final: &str| {
        let mut client =
            ClientScram::with_nonce(ScramHash::Sha256, "user", b"pencil", CLIENT_NONCE.into());
        client.last(SERVER_FIRST.as_bytes()).unwrap();
        client.finish(server_final.as_bytes())
    };
    assert_eq!(
        finish("v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G5="),
        Err(ScramError::Malformed("the signature v= must be base64"))
    );
    assert_eq!(
        finish("v=AAAATRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="),
        Err(ScramError::BadServerSignature)
    );
    assert_eq!(
        finish("e=other-error"),
        Err(ScramError::RejectedByServer("other-error".into()))
    );
}

/// The exchange of RFC 7677 with SHA-512; the expected values were computed with Python's hashlib and hmac.
#[test]
fn a_client_can_use_sha_512() {
    let hash = ScramHash::Sha512;
    let mut client = ClientScram::with_nonce(hash, "user", b"pencil", CLIENT_NONCE.into());
    let proof = client.last(SERVER_FIRST.as_bytes()).unwrap();
    let expected = "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
        p=gMGXRcevScNtxZ6/8lQYpGtnsNAc3mGcmNomv+xnoOMw+3R2xNJdMNnzMlTN8PPC6wdp6dybEmDYXYTxwnYPJQ==";
    assert_eq!(String::from_utf8(proof).unwrap(), expected);
    let signature = "v=ZQnYEgWQMFmmsM8aQMF0nDDCy/AgCzkwk8CmMZYcMg0vSVlKDanekLtifDSeVGT4+5ZxXnJq199RVG2rR7N7Zw==";
    assert_eq!(client.finish(signature.as_bytes()), Ok(()));
}

#[test]
fn a_credential_survives_its_text_form_and_checks_passwords() {
    let credential = ScramCredential::generate(b"pencil", MIN_ITERATIONS).unwrap();
    let text = credential.to_string();
    assert_eq!(text.parse::<ScramCredential>().unwrap(), credential);
    assert!(credential.verify_password(b"pencil"));
    assert!(!credential.verify_password(b"Pencil"));
    assert!(!credential.verify_password(b""));
    assert!(!decoy().credential("user").verify_password(b"pencil"));
    assert_eq!(
        format!("{credential:?}"),
        "Credential(scram-sha-256, 4096 iterations)"
    );
}

#[test]
fn an_invalid_credential_error_names_the_field() {
    let message = |text: &str| text.parse::<ScramCredential>().unwrap_err().to_string();
    let key = BASE64.encode([0; 32]);
    let shape = "not a credential: expected scram-sha-256$ITERATIONS$SALT$STORED_KEY$SERVER_KEY";
    assert_eq!(message("hunter2"), shape);
    assert_eq!(message("scram-sha-256$4096"), shape);
    assert_eq!(
        message(&format!("scram-sha-256$4096$AAAA${key}${key}$")),
        shape
    );
    assert_eq!(
        message(&format!("scram-sha-256$10$AAAA${key}${key}")),
        "not a credential: the iterations must be a number from 4096 to 1000000"
    );
    assert_eq!(
        message(&format!("scram-sha-256$4096$?${key}${key}")),
        "not a credential: the salt must be 1 to 256 bytes in base64"
    );
    assert_eq!(
        message(&format!("scram-sha-256$4096$AAAA$AAAA${key}")),
        "not a credential: the stored key must be 32 bytes in base64"
    );
}
