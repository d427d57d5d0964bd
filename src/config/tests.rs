use super::*;

fn load(sets: &[&str]) -> Result<Config, Error> {
    let sets: Vec<_> = sets.iter().map(|&set| set.to_owned()).collect();
    Config::load(Some(Path::new("/dev/null")), [], &sets)
}

#[test]
fn config_toml_holds_every_key_with_its_default() {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/config.toml")).unwrap();
    let written: toml::Value = toml::from_str(&text).unwrap();
    let defaults = toml::Value::try_from(Config::default()).unwrap();
    assert_eq!(written, defaults);
}

#[test]
fn environment_goes_over_the_file_and_flags_over_both() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("c.toml");
    std::fs::write(&file, "shards = 8\nlease = \"PT5S\"\n[server]\nlisten = \"127.0.0.1:1\"\n").unwrap();
    let secret = dir.path().join("keys");
    std::fs::write(&secret, "0123456789abcdef\nfedcba9876543210\n").unwrap();
    let env = [
        ("MAINSPRING__LEASE".to_owned(), "PT7S".to_owned()),
        ("MAINSPRING__SERVER__LISTEN".to_owned(), "127.0.0.1:2".to_owned()),
        ("MAINSPRING__SERVER__API_KEYS_FILE".to_owned(), secret.display().to_string()),
        ("MAINSPRING__WEBHOOK__ALLOW_NETWORKS".to_owned(), "10.0.0.0/8, fd00::/8".to_owned()),
        ("UNRELATED".to_owned(), "x".to_owned()),
    ];
    let config = Config::load(Some(&file), env, &["server.listen=127.0.0.1:3".to_owned()]).unwrap();
    assert_eq!((config.shards, config.lease.to_string().as_str()), (8, "PT7S"));
    assert_eq!(config.server.listen.port(), 3);
    assert_eq!(config.server.api_keys.len(), 2);
    assert!(config.allows_network("10.1.2.3".parse().unwrap()));
    assert!(!config.allows_network("192.168.0.1".parse().unwrap()));
    assert!(!config.shown().contains("0123456789abcdef"));
}

#[test]
fn a_setting_that_is_not_valid_is_refused_by_name() {
    for (set, named) in [
        ("shards=0", "shards"),
        ("shards=2000", "shards"),
        ("shard=8", "shard"),
        ("server.listn=127.0.0.1:1", "listn"),
        ("lease=3", "lease"),
        ("lease=PT0.1S", "lease"),
        ("server.listen=nowhere", "server.listen"),
        ("server.api_keys=short", "server.api_keys"),
        ("cold.url=mysql://x", "cold.url"),
        ("cold.url=postgres://a:1,b:2/x", "`cold.url`: invalid port number; give postgres://"),
        ("cold.url=postgres://me:12/t0p@a/x", "%2F"),
        ("cold.url=postgres://me:12?t0p@a/x", "%3F"),
        ("cold.url=postgres://me:12?t0=p@a/x", "%3F"),
        ("cold.url=postgres://me:12#t0p@a/x", "%23"),
        ("hot.url=redis+cluster://", "hot.url"),
        ("hot.url=redis+cluster://a,b:port", "hot.url"),
        ("hot.url=redis://", "hot.url"),
        ("hot.url=memcached://x", "hot.url"),
        ("hot.connections=1", "hot.connections"),
        ("wheel.lead=PT2S", "wheel.lead"),
        ("wheel.load_per_second=0", "wheel.load_per_second"),
        ("wheel.catch_up_per_second=0", "wheel.catch_up_per_second"),
        ("webhook.timeout=PT1H", "webhook.timeout"),
        ("webhook.allow_networks=everything", "allow_networks"),
        ("webhook.proxy=somewhere", "proxy"),
        ("webhook.proxy=socks5://proxy:1080", "webhook.proxy"),
        ("webhook.proxy=http://me:t0p@proxy:3128", "webhook.proxy"),
        ("wheel.near=PT2H", "wheel.near"),
        ("log.format=xml", "format"),
        ("nonsense", "nonsense"),
        ("shards=many", "shards"),
    ] {
        let message = load(&[set]).expect_err(set).to_string();
        assert!(message.contains(named), "{set}: {message}");
        assert!(!message.contains("t0p"), "{set}: {message}");
    }
}

#[test]
fn text_stays_text_even_if_it_looks_like_a_number() {
    let config = load(&["node.name=7", "server.api_keys=1234567890123456"]).unwrap();
    assert_eq!((config.node.name.as_str(), config.server.api_keys.len()), ("7", 1));
    let listed = load(&["webhook.allow_networks=[\"10.0.0.0/8\"]"]).unwrap();
    assert_eq!(listed.webhook.allow_networks.len(), 1);
}

#[test]
fn a_password_is_never_shown() {
    let config = load(&["cold.url=postgres://me:s3cret@localhost/x"]).unwrap();
    assert!(!config.shown().contains("s3cret"));
    assert!(!shown_url("postgres://localhost/x?user=me&password=s3cret").contains("s3cret"));
    assert_eq!(shown_url("sqlite://mainspring.db"), "sqlite://mainspring.db");
    for (url, shown) in [
        ("postgres://a/x?password=s3#cret", "postgres://a/x?password=hidden"),
        ("postgres://a:1,b:2/x?password=s3#cret&password=s3cret", "postgres://a:1,b:2/x?password=hidden"),
        ("sqlite://a#1.db", "sqlite://a#1.db"),
        ("sqlite://a:b@c d.db", "sqlite://a:b@c d.db"),
        ("redis+cluster://me:s3cret@a:1,b:2", "redis+cluster://me:hidden@a:1,b:2"),
        ("redis+cluster://:s3:c@ret@a:1,b:2", "redis+cluster://:hidden@a:1,b:2"),
        ("redis+cluster://a:1,b:2", "redis+cluster://a:1,b:2"),
        ("redis://:s3cret@a:port", "redis://:hidden@a:port"),
        ("redis+cluster://a:1,b:2?password=s3cret&x=1", "redis+cluster://a:1,b:2?password=hidden&x=1"),
        // A `#` or a `/` that is not encoded.
        ("postgres://me:s3#c@a/b?password=s3cret", "postgres://me:hidden@a/b?password=hidden"),
        ("postgres://me:s3/c@a/b c", "postgres://me:hidden@a/b%20c"),
        ("postgres://me:12#s3@a/b", "postgres://me:hidden@a/b"),
    ] {
        assert_eq!(shown_url(url), shown);
        assert_eq!(shown_url(shown), shown, "what is shown has nothing left to hide");
        assert!(
            !load(&[&format!("hot.url={url}")])
                .map_or_else(|why| why.to_string(), |c| c.shown())
                .contains("s3")
        );
    }
}

#[cfg(feature = "planted")]
mod planted {
    use crate::config::Config;
    use crate::planted::Defect;

    fn load(set: &str) -> Result<Config, crate::config::Error> {
        Config::load(Some(std::path::Path::new("/dev/null")), [], &[set.to_owned()])
    }

    #[test]
    fn nothing_is_planted_unless_it_is_named() {
        let config = load("shards=4").expect("settings");
        assert!(Defect::ALL.into_iter().all(|defect| !config.planted().is(defect)));
        assert!(!config.shown().contains("planted"), "{}", config.shown());
    }

    #[test]
    fn a_defect_is_planted_by_its_name_and_alone() {
        let names = [
            "naive-loader",
            "claim-without-generation",
            "claim-without-epoch",
            "result-without-token",
            "blind-cancel",
            "cursor-trusted",
            "cancelled-member-stays",
            "first-member-ends",
            "set-not-frozen",
            "event-after-commit",
            "confirm-not-awaited",
            "event-given-up",
            "place-given-twice",
            "settled-by-any-token",
            "occurrence-made-twice",
            "skip-not-recorded",
            "operation-repeats",
        ];
        for (name, defect) in names.into_iter().zip(Defect::ALL) {
            let planted = load(&format!("planted={name}")).expect("settings").planted();
            assert!(Defect::ALL.into_iter().all(|other| planted.is(other) == (other == defect)), "{name}");
        }
    }

    #[test]
    fn an_unknown_defect_is_refused_and_the_known_ones_are_named() {
        let why = load("planted=typo").expect_err("refused").to_string();
        assert!(
            why.contains("planted") && why.contains("naive-loader") && why.contains("cursor-trusted"),
            "{why}"
        );
    }
}
