use serde_json::{Value, json};

use super::meter::{Count, MAX_FAULTS, MAX_NESTED, MAX_STEPS, TooCostly, measure};
use super::outline::{MAX_CHAIN, MAX_DEPTH, MAX_PATTERNS, Outline};
use super::*;
use crate::model::template::{MAX_SCHEMA, TemplateHash};
use crate::model::timer::MAX_DATA;

fn template(schema: &Value, defaults: Option<Value>) -> Template {
    let read = Schema::read(&schema.to_string()).unwrap_or_else(|why| panic!("{schema}: {why:?}"));
    Template::new(TemplateHash([0; 16]), 0, defaults.map(|defaults| defaults.to_string()), Some(read))
}

fn fitted(template: &Template, data: &Value) -> Result<Value, Vec<(String, &'static str)>> {
    let text = data.to_string();
    match template.fit(Some(text.as_bytes())) {
        Ok(data) => Ok(data.map_or(Value::Null, |data| serde_json::from_slice(&data).expect("JSON"))),
        Err(faults) => {
            let mut told: Vec<_> = faults.into_iter().map(|fault| (fault.pointer, fault.code)).collect();
            told.sort_unstable();
            Err(told)
        }
    }
}

fn refused(schema: &Value) -> Vec<(String, &'static str)> {
    let text = schema.to_string();
    let faults = Schema::read(&text).expect_err("refused");
    faults.into_iter().map(|fault| (fault.pointer, fault.code)).collect()
}

#[test]
fn data_is_merged_over_the_defaults_and_checked() {
    let schema = json!({"type": "object", "required": ["order"],
        "properties": {"order": {"type": "integer"}, "kind": {"enum": ["review", "cancel"]}}});
    let one = template(&schema, Some(json!({"kind": "review", "shop": {"id": 7, "open": true}})));
    assert_eq!(
        fitted(&one, &json!({"order": 1, "shop": {"open": null}})),
        Ok(json!({"kind": "review", "shop": {"id": 7}, "order": 1}))
    );
    assert_eq!(
        fitted(&one, &json!({"order": "x", "kind": "sing"})),
        Err(vec![("/data/kind".into(), "enum"), ("/data/order".into(), "type")])
    );
    assert_eq!(fitted(&one, &json!({})), Err(vec![("/data/order".into(), "required")]));
    assert_eq!(fitted(&one, &json!([1])), Err(vec![("/data".into(), "type")]), "what is no object replaces");
    // Without data the defaults are it; without either `null`.
    let whole = template(&json!({"required": ["a"]}), Some(json!({"a": 1})));
    assert_eq!(whole.fit(None).expect("fits"), Some(br#"{"a":1}"#.to_vec()));
    assert_eq!(template(&json!({"type": "null"}), None).fit(None).expect("fits"), None);
    assert!(template(&json!({"type": "object"}), None).fit(None).is_err());
    // Without defaults data stays as it is written.
    let plain = template(&json!(true), None);
    let text = br#"{ "n" : 12345678901234567890123.10, "gone" : null }"#;
    assert_eq!(plain.fit(Some(text)).expect("fits"), Some(text.to_vec()));
}

#[test]
fn each_fault_is_told_at_its_pointer_without_the_values_of_the_payload() {
    let schema = json!({"type": "object", "additionalProperties": false, "properties": {
        "a/b": {"items": {"maximum": 3}}, "c~d": {"properties": {"e": false}}, "s": {"minLength": 9}, "o": {"anyOf": [{"type": "null"}, {"const": 1}]}}});
    let one = template(&schema, None);
    let secret = json!({"a/b": [1, 77777], "c~d": {"e": "s3cret-value"}, "s": "s3cret", "o": "s3cret", "x": "s3cret", "y": 1});
    let faults = one.fit(Some(secret.to_string().as_bytes())).expect_err("refused");
    let mut found: Vec<(&str, &str)> =
        faults.iter().map(|fault| (fault.pointer.as_str(), fault.code)).collect();
    found.sort_unstable();
    assert_eq!(
        found,
        [
            ("/data/a~1b/1", "maximum"),
            ("/data/c~0d/e", "not_allowed"),
            ("/data/o", "anyOf"),
            ("/data/s", "minLength"),
            ("/data/x", "additionalProperties"),
            ("/data/y", "additionalProperties"),
        ]
    );
    for fault in faults {
        assert!(!fault.detail.contains("s3cret") && !fault.detail.contains("77777"), "{fault:?}");
        assert!(!fault.detail.is_empty());
    }
    let many = json!({"a/b": vec![9; 100]});
    assert_eq!(fitted(&one, &many).expect_err("refused").len(), MAX_MISFITS);
}

#[test]
fn data_that_no_schema_can_be_held_against_is_refused() {
    let one = template(&json!(true), None);
    let code = |data: &[u8]| one.fit(Some(data)).expect_err("refused")[0].code;
    assert_eq!(code(b"[1e400]"), "not_readable");
    assert_eq!(code(br#"["\ud800"]"#), "not_readable");
    assert_eq!(code(format!("{}{}", "[".repeat(200), "]".repeat(200)).as_bytes()), "not_readable");
    let deep = format!("{}1{}", r#"{"a":"#.repeat(3000), "}".repeat(3000));
    let merging = template(&json!(true), Some(json!({})));
    assert_eq!(merging.fit(Some(deep.as_bytes())).expect_err("refused")[0].code, "not_readable");
    let large = json!({"a": "x".repeat(MAX_DATA - 10)}).to_string();
    assert!(one.fit(Some(large.as_bytes())).is_ok());
    let fault =
        &template(&json!(true), Some(json!({"b": 1}))).fit(Some(large.as_bytes())).expect_err("refused")[0];
    assert_eq!((fault.pointer.as_str(), fault.code), ("/data", "too_large"));
}

#[test]
fn what_is_no_schema_is_told_at_its_pointer() {
    for (schema, pointer, code) in [
        (json!(7), "/schema", "wrong_type"),
        (json!({"type": "thing"}), "/schema/type", "bad_schema"),
        (json!({"properties": {"a/b": {"minimum": "x"}}}), "/schema/properties/a~1b/minimum", "bad_schema"),
        (json!({"$schema": "http://json-schema.org/draft-07/schema#"}), "/schema/$schema", "not_supported"),
        (json!({"items": {"$schema": "x:y"}}), "/schema/items/$schema", "not_supported"),
        (json!({"$ref": "https://example.com/s.json"}), "/schema/$ref", "remote_reference"),
        (json!({"$ref": "https://json-schema.org/draft/2020-12/schema"}), "/schema/$ref", "remote_reference"),
        (json!({"$ref": "other.json#/a"}), "/schema/$ref", "remote_reference"),
        (json!({"$ref": "file:///etc/passwd"}), "/schema/$ref", "remote_reference"),
        (
            json!({"$defs": {"unused": {"$ref": "http://10.0.0.1/"}}}),
            "/schema/$defs/unused/$ref",
            "remote_reference",
        ),
        (json!({"allOf": [true, {"not": {"$ref": "//a"}}]}), "/schema/allOf/1/not/$ref", "remote_reference"),
        (json!({"$ref": "#/$defs/none"}), "/schema/$ref", "no_such_part"),
        (json!({"$ref": "#none"}), "/schema/$ref", "no_such_part"),
        (json!({"$dynamicRef": "#a"}), "/schema/$dynamicRef", "not_supported"),
        (json!({"$dynamicAnchor": "a"}), "/schema/$dynamicAnchor", "not_supported"),
        (json!({"$defs": {"a": {"$id": "http://a/b"}}}), "/schema/$defs/a/$id", "not_supported"),
        (json!({"pattern": "(a"}), "/schema/pattern", "bad_pattern"),
        (json!({"pattern": "(?=a)b"}), "/schema/pattern", "bad_pattern"),
        (json!({"pattern": "(a)\\1"}), "/schema/pattern", "bad_pattern"),
        (json!({"pattern": "((\\w{50}){50}){50}"}), "/schema/pattern", "bad_pattern"),
        (json!({"patternProperties": {"(?!x)y": true}}), "/schema/patternProperties", "bad_pattern"),
        (json!({"allOf": [{"$ref": "#"}]}), "/schema", "endless"),
        (
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}]}, "b": {"not": {"$ref": "#/$defs/a"}}}}),
            "/schema",
            "endless",
        ),
    ] {
        let found = refused(&schema);
        assert!(found[0].0.starts_with(pointer) && found[0].1 == code, "{schema}: {found:?}");
    }
    for types in [json!("thing"), json!(["string", "string"]), json!([]), json!(null)] {
        let text = json!({"items": {"type": types}}).to_string();
        let told = &Schema::read(&text).expect_err("refused")[0];
        assert_eq!((told.pointer.as_str(), told.code), ("/schema/items/type", "bad_schema"));
        assert!(told.detail.contains("number, object or string"), "{told:?}");
    }
    // Names are no keywords, and what stands in a value is no schema.
    for schema in [
        json!({"properties": {"$ref": {"type": "string"}, "$schema": true, "pattern": {"pattern": "^a+$"}}}),
        json!({"const": {"$ref": "http://a/"}, "examples": [{"$schema": "x"}]}),
        json!({"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "https://shop.example/order"}),
        json!({"$ref": "#/$defs/a%20b", "$defs": {"a b": {"$anchor": "x"}, "c": {"$ref": "#x"}}}),
        json!({"$defs": {"tree": {"properties": {"left": {"$ref": "#/$defs/tree"}, "right": {"$ref": "#/$defs/tree"}}}}, "$ref": "#/$defs/tree"}),
        json!({"items": {"$ref": "#"}}),
        json!(false),
    ] {
        template(&schema, None);
    }
}

#[test]
fn a_schema_is_bounded() {
    let nested = |depth: usize| (1..depth).fold(json!({}), |inner, _| json!({"not": inner}));
    assert_eq!(refused(&nested(MAX_DEPTH + 1)), [("/schema".into(), "too_deep")]);
    template(&nested(MAX_CHAIN), None);
    assert_eq!(refused(&nested(MAX_CHAIN + 1)), [("/schema".into(), "too_deep")]);
    let patterns = |count| json!({"allOf": vec![json!({"pattern": "a"}); count]});
    template(&patterns(MAX_PATTERNS), None);
    assert_eq!(refused(&patterns(MAX_PATTERNS + 1)), [("/schema".into(), "too_many")]);
    assert_eq!(refused(&json!({"title": "x".repeat(MAX_SCHEMA)})), [("/schema".into(), "too_large")]);
    let wrong: Vec<Value> = (0..100).map(|n| json!({"$ref": format!("http://a/{n}")})).collect();
    assert_eq!(refused(&json!({"allOf": wrong})).len(), MAX_MISFITS);
}

/// Formats are annotations, as the dialect says.
#[test]
fn formats_are_not_checked() {
    let one = template(&json!({"format": "email", "contentEncoding": "base64"}), None);
    assert!(fitted(&one, &json!("no address")).is_ok());
}

/// The largest schemas of their kinds are read, used and dropped on a thread of the runtime's size.
#[test]
fn the_longest_chains_fit_the_stack() {
    let by_fields = |count: usize| {
        let chain = (0..count).map(|n| {
            let next = json!({"properties": {"a": {"$ref": format!("#/$defs/{}", n + 1)}}});
            (n.to_string(), next)
        });
        let mut defs: serde_json::Map<String, Value> = chain.collect();
        defs.insert(count.to_string(), json!(true));
        json!({"$ref": "#/$defs/0", "$defs": defs})
    };
    let wide = json!({"allOf": vec![json!({}); 20_000]});
    let flat: serde_json::Map<String, Value> =
        (0..2500).map(|n| (n.to_string(), json!({"type": "string"}))).collect();
    let recursive =
        json!({"anyOf": [{"type": "null"}, {"properties": {"a": {"$ref": "#"}}}, {"items": {"$ref": "#"}}]});
    let run = move || {
        for schema in [by_fields(870), wide, json!({"properties": flat}), recursive] {
            assert!(schema.to_string().len() <= MAX_SCHEMA, "{}", schema.to_string().len());
            let one = template(&schema, None);
            let deep = (0..120).fold(json!({}), |inner, _| json!({"a": inner}));
            let wrong = (0..120).fold(json!(1), |inner, _| json!({"a": inner}));
            for data in [deep, wrong, json!([])] {
                let _ = fitted(&one, &data);
            }
        }
    };
    let thread = std::thread::Builder::new().stack_size(2 * 1024 * 1024).spawn(run).expect("a thread");
    thread.join().expect("the stack is large enough");
}

/// As many parts as may be, inside each other.
#[test]
fn the_deepest_check_fits_the_stack() {
    let chain = (1..MAX_CHAIN / 2)
        .fold(json!({"items": {"$ref": "#"}, "type": "array"}), |inner, _| json!({"allOf": [inner]}));
    let run = move || {
        let one = template(&chain, None);
        let mut fits = 0;
        for depth in 1..120 {
            for end in [json!([]), json!(1)] {
                let data = (1..depth).fold(end, |inner, _| json!([inner]));
                fits += usize::from(!matches!(fitted(&one, &data), Err(why) if why[0].1 == "too_costly"));
            }
        }
        assert!(fits > 20, "{fits}");
        assert_eq!(fits % 2, 0, "it depends on the depth alone");
    };
    let thread = std::thread::Builder::new().stack_size(2 * 1024 * 1024).spawn(run).expect("a thread");
    thread.join().expect("the stack is large enough");
}

/// A schema of a few lines can ask for endless work. The data that would start it is refused before it is started.
#[test]
fn a_check_is_bounded_in_steps() {
    let twice = |keyword: &str, to: &Value| json!({keyword: [to, to]});
    // A level of the schema asks twice, and so for each item.
    let chain = |keyword: &str| {
        let count = MAX_CHAIN / 2 - 1;
        let next = |n: usize| twice(keyword, &json!({"$ref": format!("#/$defs/{}", n + 1)}));
        let mut defs: serde_json::Map<String, Value> = (0..count).map(|n| (n.to_string(), next(n))).collect();
        defs.insert(count.to_string(), json!({"type": "integer", "minimum": 3}));
        json!({"items": {"$ref": "#/$defs/0"}, "$defs": defs})
    };
    // A level of the data asks twice.
    let field = |name: &str| json!({"properties": {"a": {"$ref": "#"}}, "required": [name]});
    let by_level = json!({"anyOf": [field("x"), field("y")]});
    let by_pattern = json!({"patternProperties": {"a": {"$ref": "#"}, "^a": {"$ref": "#"}}});
    // Who looks back asks again.
    let looking_back = (0..10).fold(
        json!({"properties": {"a": true}}),
        |inner, _| json!({"allOf": [inner], "unevaluatedProperties": false}),
    );
    let many: Value = (0..200).map(|n| (format!("f{n}"), json!(n))).collect::<serde_json::Map<_, _>>().into();
    let deep = (0..100).fold(json!({}), |inner, _| json!({"a": inner}));
    let too_costly = Err(vec![("/data".to_owned(), "too_costly")]);
    for (schema, data) in [
        (chain("allOf"), vec![json!(1); 1000].into()),
        (chain("oneOf"), vec![json!(1); 1000].into()),
        (by_level, deep.clone()),
        (by_pattern, deep),
        (looking_back, many),
        (json!({"allOf": vec![json!({"uniqueItems": true}); 100]}), (0..5000).collect()),
        (json!({"items": {"pattern": "^(a|b)*$"}}), vec![json!("ab".repeat(3000)); 10].into()),
    ] {
        let found = fitted(&template(&schema, None), &data);
        let fits = schema["items"]["pattern"].is_string();
        assert_eq!(found, if fits { Ok(data) } else { too_costly.clone() }, "{schema}");
    }
}

/// Copies of the payload in the faults of alternatives are counted before they are made.
#[test]
fn faults_are_bounded_in_memory() {
    let alternatives: Vec<Value> = (0..2000).map(|n| json!({"required": [format!("k{n}")]})).collect();
    let one = template(&json!({"anyOf": alternatives}), None);
    let large: Value =
        (0..4000).map(|n| (format!("f{n}"), json!(n))).collect::<serde_json::Map<_, _>>().into();
    assert_eq!(fitted(&one, &large), Err(vec![("/data".into(), "not_valid")]));
    assert_eq!(fitted(&one, &json!({"a": 1})), Err(vec![("/data".into(), "anyOf")]));
}

#[test]
fn the_meter_counts_what_may_apply() {
    let cost = |schema: &Value, data: &Value, count: Count| {
        let outline = Outline::of(schema).expect("an outline");
        measure(&outline, data, count)
    };
    let items = json!({"items": {"type": "integer"}});
    assert_eq!(cost(&items, &vec![json!(1); MAX_STEPS - 1].into(), Count::Steps), Ok(()));
    assert_eq!(cost(&items, &vec![json!(1); MAX_STEPS].into(), Count::Steps), Err(TooCostly));
    assert_eq!(cost(&items, &vec![json!(1); MAX_FAULTS - 1].into(), Count::Faults), Ok(()));
    assert_eq!(cost(&items, &vec![json!(1); MAX_FAULTS].into(), Count::Faults), Err(TooCostly));
    let nested = |depth| (1..depth).fold(json!([]), |inner, _| json!([inner]));
    let tree = json!({"items": {"$ref": "#"}});
    assert_eq!(cost(&tree, &nested(MAX_NESTED / 2), Count::Steps), Ok(()));
    assert_eq!(cost(&tree, &nested(MAX_NESTED / 2 + 1), Count::Steps), Err(TooCostly));
}

/// What is small and asks for much is checked beside the runtime.
#[test]
fn the_effort_of_a_schema_that_fans_out_does_not_go_by_size() {
    let effort = |schema: Value| template(&schema, None).effort(10);
    assert!(effort(json!({"properties": {"a": {"type": "integer"}}, "$defs": {"b": true}})) < 100);
    let twice = json!({"$defs": {"b": true}, "allOf": [{"$ref": "#/$defs/b"}, {"$ref": "#/$defs/b"}]});
    for schema in [twice, json!({"items": {"$ref": "#"}}), json!({"unevaluatedItems": false})] {
        assert_eq!(effort(schema), MAX_STEPS);
    }
}

/// So many templates are kept as fit; the rest is made ready again.
#[test]
fn what_is_kept_ready_is_bounded() {
    let heavy = || {
        let patterns = json!({"allOf": vec![json!({"pattern": "a"}); MAX_PATTERNS]});
        Arc::new(template(&patterns, None))
    };
    let fit = MAX_KEPT / heavy().weight();
    let mut kept = Kept { by_name: LruCache::unbounded(), weight: 0 };
    for n in 0..fit + 3 {
        kept.put(&n.to_string(), heavy());
        kept.put("again", Arc::new(template(&json!(true), None)));
    }
    assert_eq!(kept.by_name.len(), fit + 1);
    assert!(kept.weight <= MAX_KEPT && kept.by_name.contains("again") && !kept.by_name.contains("0"));
    kept.forget("again");
    kept.forget("again");
    assert_eq!(kept.weight, fit * heavy().weight());
}
