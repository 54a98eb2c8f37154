//! TLS, with a certificate made for these tests.

use std::{
    fs,
    io::{Read as _, Write as _},
    sync::Arc,
};

use tokio_rustls::rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};

use super::rig::{Service, Site, kill, status, wait};
use crate::common::done;

const CERTIFICATE: &str = include_str!("certificate.pem");
const KEY: &str = include_str!("key.pem");

fn site() -> Site {
    let mut site = Site::new(&["shop"]);
    site.settings = "tls = { certificate = \"c.pem\", key = \"k.pem\" }".to_owned();
    fs::write(site.base().join("c.pem"), CERTIFICATE).unwrap();
    fs::write(site.base().join("k.pem"), KEY).unwrap();
    site
}

fn ask(service: &Service) -> Result<String, std::io::Error> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(CERTIFICATE.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(tokio_rustls::rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    let client = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream = StreamOwned::new(client, service.connect());
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply)?;
    Ok(reply)
}

#[test]
fn a_service_with_a_certificate_speaks_tls_and_nothing_else() {
    let site = site();
    let service = site.serve();
    assert!(service.said.contains("https://127.0.0.1:"), "{}", service.said);
    assert_eq!(status(&ask(&service).unwrap()), 200);
    let mut plain = service.connect();
    plain.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut reply = Vec::new();
    let _ = plain.read_to_end(&mut reply);
    assert!(!reply.starts_with(b"HTTP"), "{reply:?}");
    // A client without a handshake delays no other.
    let _silent = service.connect();
    assert_eq!(status(&ask(&service).unwrap()), 200);
    service.stop();
}

#[test]
fn a_certificate_that_cannot_be_used_starts_nothing() {
    let site = site();
    site.write();
    fs::write(site.base().join("k.pem"), "no key\n").unwrap();
    let done = done(site.command(&[]).output().unwrap());
    assert_eq!(done.code, 1);
    assert!(done.stderr.contains("cannot read the certificate's key"), "{}", done.stderr);
}

/// The front spoke in the clear when it was started again.
#[test]
fn a_configuration_without_the_certificate_takes_tls_from_no_running_service() {
    let mut site = site();
    let service = site.serve();
    site.settings.clear();
    site.write();
    service.signal(rustix::process::Signal::HUP);
    let note = site.await_record("serve", |record| record["op"] == "reload");
    assert_eq!(note["facts"]["fromNextStart"], serde_json::json!(["tls"]));
    kill_front(&service);
    assert_eq!(status(&ask(&service).unwrap()), 200);
    service.stop();
}

/// It ended, when a front died while the files did not go together.
#[test]
fn a_service_goes_on_with_its_certificate_while_the_files_are_exchanged() {
    let site = site();
    let service = site.serve();
    fs::write(site.base().join("k.pem"), "half a key\n").unwrap();
    kill_front(&service);
    assert_eq!(status(&ask(&service).unwrap()), 200);
    service.signal(rustix::process::Signal::HUP);
    let note = site
        .await_record("serve", |record| record["op"] == "reload" && record["decision"] == "deny");
    assert!(note["facts"]["certificate"].as_str().unwrap().ends_with("c.pem"), "{note}");
    assert!(note["reason"].as_str().unwrap().contains("certificate's key"), "{note}");
    kill_front(&service);
    assert_eq!(status(&ask(&service).unwrap()), 200);
    service.stop();
}

/// Regression: the workspace was served no more, and what its agent had written was read as the
/// certificate.
#[test]
fn a_certificate_that_leads_into_a_workspace_now_was_read() {
    let mut site = site();
    let base = site.base();
    site.settings = "tls = { certificate = \"live/c.pem\", key = \"live/k.pem\" }".to_owned();
    std::os::unix::fs::symlink(".", base.join("live")).unwrap();
    let service = site.serve();
    fs::write(site.root("shop").join("c.pem"), CERTIFICATE).unwrap();
    fs::write(site.root("shop").join("k.pem"), KEY).unwrap();
    fs::remove_file(base.join("live")).unwrap();
    std::os::unix::fs::symlink("roots/shop", base.join("live")).unwrap();
    service.signal(rustix::process::Signal::HUP);
    let note = site.await_record("serve", |record| record["op"] == "reload");
    assert_eq!((&note["decision"], &note["facts"]), (&"deny".into(), &serde_json::json!({})));
    let named = format!("the certificate `{}`", base.join("live/c.pem").display());
    assert!(note["reason"].as_str().unwrap().contains(&named), "{note}");
    assert_eq!(status(&ask(&service).unwrap()), 200);
    service.stop();
}

/// Kills the front, and waits for another.
fn kill_front(service: &Service) {
    let front = service.processes("front-process").pop().unwrap();
    kill(front, rustix::process::Signal::KILL);
    wait(|| service.processes("front-process").pop().filter(|new| *new != front));
}
