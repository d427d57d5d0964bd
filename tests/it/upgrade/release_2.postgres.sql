CREATE TABLE public.attempts (
    uid uuid NOT NULL,
    generation integer NOT NULL,
    attempt integer NOT NULL,
    started_at bigint NOT NULL,
    ended_at bigint NOT NULL,
    result text NOT NULL,
    status integer,
    reply text,
    detail text,
    node text NOT NULL,
    created_at bigint NOT NULL,
    delivery_id text,
    worker text
);
CREATE TABLE public.destination_slots (
    lane bigint NOT NULL,
    next_slot bigint NOT NULL
)
WITH (fillfactor='25', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000');
CREATE TABLE public.destinations (
    namespace smallint NOT NULL,
    name text NOT NULL,
    kind text NOT NULL,
    settings text NOT NULL,
    secrets bytea,
    paused boolean NOT NULL,
    version integer NOT NULL,
    created_at bigint NOT NULL,
    changed_at bigint NOT NULL
);
CREATE TABLE public.ended_ids (
    uid uuid NOT NULL,
    request_hash bytea NOT NULL,
    generation integer NOT NULL,
    until bigint NOT NULL
);
CREATE TABLE public.forecast (
    id bigint NOT NULL,
    counted_at bigint NOT NULL,
    bins text NOT NULL
);
CREATE TABLE public.history (
    uid uuid NOT NULL,
    id text NOT NULL,
    caller_id boolean NOT NULL,
    owner text,
    shard integer NOT NULL,
    state smallint NOT NULL,
    due_at bigint NOT NULL,
    wake_at bigint NOT NULL,
    expire_at bigint,
    generation integer NOT NULL,
    attempt integer NOT NULL,
    tries integer NOT NULL,
    version integer NOT NULL,
    epoch bigint NOT NULL,
    lane bigint NOT NULL,
    minute boolean NOT NULL,
    uncertain boolean NOT NULL,
    cancel_requested boolean NOT NULL,
    acked_late boolean NOT NULL,
    target text NOT NULL,
    data bytea,
    labels text,
    policies text,
    request_hash bytea NOT NULL,
    created_at bigint NOT NULL,
    claimed_at bigint,
    node text,
    ended_at bigint NOT NULL,
    last text,
    via smallint,
    kind smallint,
    trace bytea,
    pointed_at bigint,
    priority smallint,
    merge_key bytea,
    merged text,
    spread bigint,
    spread_from bigint,
    dispatch text,
    audience bigint,
    ready_at bigint,
    fresh integer,
    acked integer,
    schedule text,
    nominal bigint,
    skipped smallint,
    overlap smallint,
    judge_after bigint,
    template text
)
PARTITION BY RANGE (ended_at);
CREATE TABLE public.history_d20784 (
    uid uuid NOT NULL,
    id text NOT NULL,
    caller_id boolean NOT NULL,
    owner text,
    shard integer NOT NULL,
    state smallint NOT NULL,
    due_at bigint NOT NULL,
    wake_at bigint NOT NULL,
    expire_at bigint,
    generation integer NOT NULL,
    attempt integer NOT NULL,
    tries integer NOT NULL,
    version integer NOT NULL,
    epoch bigint NOT NULL,
    lane bigint NOT NULL,
    minute boolean NOT NULL,
    uncertain boolean NOT NULL,
    cancel_requested boolean NOT NULL,
    acked_late boolean NOT NULL,
    target text NOT NULL,
    data bytea,
    labels text,
    policies text,
    request_hash bytea NOT NULL,
    created_at bigint NOT NULL,
    claimed_at bigint,
    node text,
    ended_at bigint NOT NULL,
    last text,
    via smallint,
    kind smallint,
    trace bytea,
    pointed_at bigint,
    priority smallint,
    merge_key bytea,
    merged text,
    spread bigint,
    spread_from bigint,
    dispatch text,
    audience bigint,
    ready_at bigint,
    fresh integer,
    acked integer,
    schedule text,
    nominal bigint,
    skipped smallint,
    overlap smallint,
    judge_after bigint,
    template text
);
CREATE TABLE public.history_d20785 (
    uid uuid NOT NULL,
    id text NOT NULL,
    caller_id boolean NOT NULL,
    owner text,
    shard integer NOT NULL,
    state smallint NOT NULL,
    due_at bigint NOT NULL,
    wake_at bigint NOT NULL,
    expire_at bigint,
    generation integer NOT NULL,
    attempt integer NOT NULL,
    tries integer NOT NULL,
    version integer NOT NULL,
    epoch bigint NOT NULL,
    lane bigint NOT NULL,
    minute boolean NOT NULL,
    uncertain boolean NOT NULL,
    cancel_requested boolean NOT NULL,
    acked_late boolean NOT NULL,
    target text NOT NULL,
    data bytea,
    labels text,
    policies text,
    request_hash bytea NOT NULL,
    created_at bigint NOT NULL,
    claimed_at bigint,
    node text,
    ended_at bigint NOT NULL,
    last text,
    via smallint,
    kind smallint,
    trace bytea,
    pointed_at bigint,
    priority smallint,
    merge_key bytea,
    merged text,
    spread bigint,
    spread_from bigint,
    dispatch text,
    audience bigint,
    ready_at bigint,
    fresh integer,
    acked integer,
    schedule text,
    nominal bigint,
    skipped smallint,
    overlap smallint,
    judge_after bigint,
    template text
);
CREATE TABLE public.history_d20786 (
    uid uuid NOT NULL,
    id text NOT NULL,
    caller_id boolean NOT NULL,
    owner text,
    shard integer NOT NULL,
    state smallint NOT NULL,
    due_at bigint NOT NULL,
    wake_at bigint NOT NULL,
    expire_at bigint,
    generation integer NOT NULL,
    attempt integer NOT NULL,
    tries integer NOT NULL,
    version integer NOT NULL,
    epoch bigint NOT NULL,
    lane bigint NOT NULL,
    minute boolean NOT NULL,
    uncertain boolean NOT NULL,
    cancel_requested boolean NOT NULL,
    acked_late boolean NOT NULL,
    target text NOT NULL,
    data bytea,
    labels text,
    policies text,
    request_hash bytea NOT NULL,
    created_at bigint NOT NULL,
    claimed_at bigint,
    node text,
    ended_at bigint NOT NULL,
    last text,
    via smallint,
    kind smallint,
    trace bytea,
    pointed_at bigint,
    priority smallint,
    merge_key bytea,
    merged text,
    spread bigint,
    spread_from bigint,
    dispatch text,
    audience bigint,
    ready_at bigint,
    fresh integer,
    acked integer,
    schedule text,
    nominal bigint,
    skipped smallint,
    overlap smallint,
    judge_after bigint,
    template text
);
CREATE TABLE public.history_d20787 (
    uid uuid NOT NULL,
    id text NOT NULL,
    caller_id boolean NOT NULL,
    owner text,
    shard integer NOT NULL,
    state smallint NOT NULL,
    due_at bigint NOT NULL,
    wake_at bigint NOT NULL,
    expire_at bigint,
    generation integer NOT NULL,
    attempt integer NOT NULL,
    tries integer NOT NULL,
    version integer NOT NULL,
    epoch bigint NOT NULL,
    lane bigint NOT NULL,
    minute boolean NOT NULL,
    uncertain boolean NOT NULL,
    cancel_requested boolean NOT NULL,
    acked_late boolean NOT NULL,
    target text NOT NULL,
    data bytea,
    labels text,
    policies text,
    request_hash bytea NOT NULL,
    created_at bigint NOT NULL,
    claimed_at bigint,
    node text,
    ended_at bigint NOT NULL,
    last text,
    via smallint,
    kind smallint,
    trace bytea,
    pointed_at bigint,
    priority smallint,
    merge_key bytea,
    merged text,
    spread bigint,
    spread_from bigint,
    dispatch text,
    audience bigint,
    ready_at bigint,
    fresh integer,
    acked integer,
    schedule text,
    nominal bigint,
    skipped smallint,
    overlap smallint,
    judge_after bigint,
    template text
);
CREATE TABLE public.history_d20788 (
    uid uuid NOT NULL,
    id text NOT NULL,
    caller_id boolean NOT NULL,
    owner text,
    shard integer NOT NULL,
    state smallint NOT NULL,
    due_at bigint NOT NULL,
    wake_at bigint NOT NULL,
    expire_at bigint,
    generation integer NOT NULL,
    attempt integer NOT NULL,
    tries integer NOT NULL,
    version integer NOT NULL,
    epoch bigint NOT NULL,
    lane bigint NOT NULL,
    minute boolean NOT NULL,
    uncertain boolean NOT NULL,
    cancel_requested boolean NOT NULL,
    acked_late boolean NOT NULL,
    target text NOT NULL,
    data bytea,
    labels text,
    policies text,
    request_hash bytea NOT NULL,
    created_at bigint NOT NULL,
    claimed_at bigint,
    node text,
    ended_at bigint NOT NULL,
    last text,
    via smallint,
    kind smallint,
    trace bytea,
    pointed_at bigint,
    priority smallint,
    merge_key bytea,
    merged text,
    spread bigint,
    spread_from bigint,
    dispatch text,
    audience bigint,
    ready_at bigint,
    fresh integer,
    acked integer,
    schedule text,
    nominal bigint,
    skipped smallint,
    overlap smallint,
    judge_after bigint,
    template text
);
CREATE TABLE public.history_d20789 (
    uid uuid NOT NULL,
    id text NOT NULL,
    caller_id boolean NOT NULL,
    owner text,
    shard integer NOT NULL,
    state smallint NOT NULL,
    due_at bigint NOT NULL,
    wake_at bigint NOT NULL,
    expire_at bigint,
    generation integer NOT NULL,
    attempt integer NOT NULL,
    tries integer NOT NULL,
    version integer NOT NULL,
    epoch bigint NOT NULL,
    lane bigint NOT NULL,
    minute boolean NOT NULL,
    uncertain boolean NOT NULL,
    cancel_requested boolean NOT NULL,
    acked_late boolean NOT NULL,
    target text NOT NULL,
    data bytea,
    labels text,
    policies text,
    request_hash bytea NOT NULL,
    created_at bigint NOT NULL,
    claimed_at bigint,
    node text,
    ended_at bigint NOT NULL,
    last text,
    via smallint,
    kind smallint,
    trace bytea,
    pointed_at bigint,
    priority smallint,
    merge_key bytea,
    merged text,
    spread bigint,
    spread_from bigint,
    dispatch text,
    audience bigint,
    ready_at bigint,
    fresh integer,
    acked integer,
    schedule text,
    nominal bigint,
    skipped smallint,
    overlap smallint,
    judge_after bigint,
    template text
);
CREATE TABLE public.history_d20790 (
    uid uuid NOT NULL,
    id text NOT NULL,
    caller_id boolean NOT NULL,
    owner text,
    shard integer NOT NULL,
    state smallint NOT NULL,
    due_at bigint NOT NULL,
    wake_at bigint NOT NULL,
    expire_at bigint,
    generation integer NOT NULL,
    attempt integer NOT NULL,
    tries integer NOT NULL,
    version integer NOT NULL,
    epoch bigint NOT NULL,
    lane bigint NOT NULL,
    minute boolean NOT NULL,
    uncertain boolean NOT NULL,
    cancel_requested boolean NOT NULL,
    acked_late boolean NOT NULL,
    target text NOT NULL,
    data bytea,
    labels text,
    policies text,
    request_hash bytea NOT NULL,
    created_at bigint NOT NULL,
    claimed_at bigint,
    node text,
    ended_at bigint NOT NULL,
    last text,
    via smallint,
    kind smallint,
    trace bytea,
    pointed_at bigint,
    priority smallint,
    merge_key bytea,
    merged text,
    spread bigint,
    spread_from bigint,
    dispatch text,
    audience bigint,
    ready_at bigint,
    fresh integer,
    acked integer,
    schedule text,
    nominal bigint,
    skipped smallint,
    overlap smallint,
    judge_after bigint,
    template text
);
CREATE TABLE public.history_d20791 (
    uid uuid NOT NULL,
    id text NOT NULL,
    caller_id boolean NOT NULL,
    owner text,
    shard integer NOT NULL,
    state smallint NOT NULL,
    due_at bigint NOT NULL,
    wake_at bigint NOT NULL,
    expire_at bigint,
    generation integer NOT NULL,
    attempt integer NOT NULL,
    tries integer NOT NULL,
    version integer NOT NULL,
    epoch bigint NOT NULL,
    lane bigint NOT NULL,
    minute boolean NOT NULL,
    uncertain boolean NOT NULL,
    cancel_requested boolean NOT NULL,
    acked_late boolean NOT NULL,
    target text NOT NULL,
    data bytea,
    labels text,
    policies text,
    request_hash bytea NOT NULL,
    created_at bigint NOT NULL,
    claimed_at bigint,
    node text,
    ended_at bigint NOT NULL,
    last text,
    via smallint,
    kind smallint,
    trace bytea,
    pointed_at bigint,
    priority smallint,
    merge_key bytea,
    merged text,
    spread bigint,
    spread_from bigint,
    dispatch text,
    audience bigint,
    ready_at bigint,
    fresh integer,
    acked integer,
    schedule text,
    nominal bigint,
    skipped smallint,
    overlap smallint,
    judge_after bigint,
    template text
);
CREATE TABLE public.history_default (
    uid uuid NOT NULL,
    id text NOT NULL,
    caller_id boolean NOT NULL,
    owner text,
    shard integer NOT NULL,
    state smallint NOT NULL,
    due_at bigint NOT NULL,
    wake_at bigint NOT NULL,
    expire_at bigint,
    generation integer NOT NULL,
    attempt integer NOT NULL,
    tries integer NOT NULL,
    version integer NOT NULL,
    epoch bigint NOT NULL,
    lane bigint NOT NULL,
    minute boolean NOT NULL,
    uncertain boolean NOT NULL,
    cancel_requested boolean NOT NULL,
    acked_late boolean NOT NULL,
    target text NOT NULL,
    data bytea,
    labels text,
    policies text,
    request_hash bytea NOT NULL,
    created_at bigint NOT NULL,
    claimed_at bigint,
    node text,
    ended_at bigint NOT NULL,
    last text,
    via smallint,
    kind smallint,
    trace bytea,
    pointed_at bigint,
    priority smallint,
    merge_key bytea,
    merged text,
    spread bigint,
    spread_from bigint,
    dispatch text,
    audience bigint,
    ready_at bigint,
    fresh integer,
    acked integer,
    schedule text,
    nominal bigint,
    skipped smallint,
    overlap smallint,
    judge_after bigint,
    template text
);
CREATE TABLE public.node_reports (
    name text NOT NULL,
    at bigint NOT NULL,
    report text NOT NULL
);
CREATE TABLE public.nodes (
    name text NOT NULL,
    incarnation text NOT NULL,
    address text NOT NULL,
    version text NOT NULL,
    started_at bigint NOT NULL,
    beat_at bigint NOT NULL,
    release integer DEFAULT 1 NOT NULL
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000');
CREATE TABLE public.operations (
    namespace smallint NOT NULL,
    id uuid NOT NULL,
    action text NOT NULL,
    filter text NOT NULL,
    selection text NOT NULL,
    dry_run boolean NOT NULL,
    state smallint NOT NULL,
    "position" text,
    matched bigint NOT NULL,
    done bigint NOT NULL,
    refused text NOT NULL,
    failure text,
    created_at bigint NOT NULL,
    ended_at bigint,
    node text,
    token uuid,
    lease_until bigint NOT NULL
);
CREATE TABLE public.outbox (
    namespace smallint NOT NULL,
    subscription bigint NOT NULL,
    shard integer NOT NULL,
    seq bigint NOT NULL,
    id uuid NOT NULL,
    kind smallint NOT NULL,
    subject text NOT NULL,
    at bigint NOT NULL,
    body bytea NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='20000', autovacuum_vacuum_insert_scale_factor='0', autovacuum_vacuum_insert_threshold='200000');
ALTER TABLE public.outbox ALTER COLUMN seq ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.outbox_seq_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.places (
    uid uuid NOT NULL,
    number integer NOT NULL,
    generation integer NOT NULL,
    attempt integer NOT NULL,
    giving integer NOT NULL,
    holder bigint NOT NULL,
    worker text NOT NULL,
    held smallint NOT NULL,
    until_at bigint NOT NULL,
    given_at bigint NOT NULL
)
WITH (fillfactor='70');
CREATE TABLE public.queues (
    namespace smallint NOT NULL,
    name text NOT NULL,
    settings text NOT NULL,
    paused boolean NOT NULL,
    version integer NOT NULL,
    created_at bigint NOT NULL,
    changed_at bigint NOT NULL
);
CREATE TABLE public.replays (
    at bigint NOT NULL,
    shard integer NOT NULL,
    node text NOT NULL,
    cause text NOT NULL,
    cursor_at bigint NOT NULL,
    detail text NOT NULL
);
CREATE TABLE public.schedules (
    namespace smallint NOT NULL,
    id text NOT NULL,
    shard integer NOT NULL,
    state smallint NOT NULL,
    plan text NOT NULL,
    content text NOT NULL,
    request text NOT NULL,
    request_hash bytea NOT NULL,
    kind smallint NOT NULL,
    lane bigint NOT NULL,
    given_to text,
    template text,
    owner text,
    labels text,
    made bigint NOT NULL,
    last_nominal bigint NOT NULL,
    paused_until bigint,
    make_at bigint,
    failures integer NOT NULL,
    gone text,
    version integer NOT NULL,
    created_at bigint NOT NULL,
    changed_at bigint NOT NULL,
    tzdb text DEFAULT ''::text NOT NULL
);
CREATE TABLE public.seaql_migrations (
    version character varying NOT NULL,
    applied_at bigint NOT NULL
);
CREATE TABLE public.shards (
    shard integer NOT NULL,
    epoch bigint NOT NULL,
    owner text,
    lease_until bigint NOT NULL,
    watermark bigint DEFAULT 0 NOT NULL,
    cursor_at bigint DEFAULT 0 NOT NULL,
    wheel text DEFAULT ''::text NOT NULL,
    spared bigint DEFAULT '-1'::integer NOT NULL,
    served_until bigint,
    served_since bigint,
    gap_from bigint
)
WITH (fillfactor='25', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000');
CREATE TABLE public.skips (
    id bigint NOT NULL,
    namespace smallint NOT NULL,
    schedule text NOT NULL,
    first_nominal bigint NOT NULL,
    last_nominal bigint NOT NULL,
    count bigint NOT NULL,
    reason smallint NOT NULL,
    rule text NOT NULL,
    at bigint NOT NULL
);
ALTER TABLE public.skips ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.skips_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.store (
    one integer NOT NULL,
    incarnation bigint NOT NULL,
    namespace text NOT NULL,
    shards integer NOT NULL,
    created_at bigint NOT NULL,
    id text DEFAULT ''::text NOT NULL,
    release integer DEFAULT 1 NOT NULL,
    bears integer DEFAULT 1 NOT NULL,
    beat_at bigint DEFAULT 0 NOT NULL,
    held_from bigint,
    held_until bigint,
    accepted_from bigint
)
WITH (fillfactor='10', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000');
CREATE TABLE public.subscription_nodes (
    incarnation text NOT NULL,
    version bigint NOT NULL
);
CREATE TABLE public.subscription_set (
    one smallint NOT NULL,
    version bigint NOT NULL
);
CREATE TABLE public.subscriptions (
    id bigint NOT NULL,
    namespace smallint NOT NULL,
    name text NOT NULL,
    destination text NOT NULL,
    settings text NOT NULL,
    version integer NOT NULL,
    created_at bigint NOT NULL,
    changed_at bigint NOT NULL,
    removed_at bigint
);
ALTER TABLE public.subscriptions ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.subscriptions_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.templates (
    namespace smallint NOT NULL,
    name text NOT NULL,
    schema text NOT NULL,
    defaults text,
    hash bytea NOT NULL,
    version integer NOT NULL,
    created_at bigint NOT NULL,
    changed_at bigint NOT NULL
);
CREATE TABLE public.timers (
    uid uuid NOT NULL,
    id text NOT NULL,
    caller_id boolean NOT NULL,
    owner text,
    shard integer NOT NULL,
    state smallint NOT NULL,
    due_at bigint NOT NULL,
    wake_at bigint NOT NULL,
    expire_at bigint,
    generation integer NOT NULL,
    attempt integer NOT NULL,
    tries integer NOT NULL,
    version integer NOT NULL,
    epoch bigint NOT NULL,
    lane bigint NOT NULL,
    minute boolean NOT NULL,
    uncertain boolean NOT NULL,
    cancel_requested boolean NOT NULL,
    acked_late boolean NOT NULL,
    target text NOT NULL,
    data bytea,
    labels text,
    policies text,
    request_hash bytea NOT NULL,
    created_at bigint NOT NULL,
    claimed_at bigint,
    node text,
    via smallint,
    kind smallint,
    trace bytea,
    pointed_at bigint,
    priority smallint,
    merge_key bytea,
    merged text,
    spread bigint,
    spread_from bigint,
    operation uuid,
    dispatch text,
    audience bigint,
    ready_at bigint,
    fresh integer,
    acked integer,
    schedule text,
    nominal bigint,
    skipped smallint,
    overlap smallint,
    judge_after bigint,
    template text
)
WITH (autovacuum_vacuum_scale_factor='0.05', autovacuum_analyze_scale_factor='0.05');
CREATE TABLE public.totals (
    name text NOT NULL,
    slot integer NOT NULL,
    value bigint NOT NULL
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000');
ALTER TABLE ONLY public.history ATTACH PARTITION public.history_d20784 FOR VALUES FROM ('1795737600000') TO ('1795824000000');
ALTER TABLE ONLY public.history ATTACH PARTITION public.history_d20785 FOR VALUES FROM ('1795824000000') TO ('1795910400000');
ALTER TABLE ONLY public.history ATTACH PARTITION public.history_d20786 FOR VALUES FROM ('1795910400000') TO ('1795996800000');
ALTER TABLE ONLY public.history ATTACH PARTITION public.history_d20787 FOR VALUES FROM ('1795996800000') TO ('1796083200000');
ALTER TABLE ONLY public.history ATTACH PARTITION public.history_d20788 FOR VALUES FROM ('1796083200000') TO ('1796169600000');
ALTER TABLE ONLY public.history ATTACH PARTITION public.history_d20789 FOR VALUES FROM ('1796169600000') TO ('1796256000000');
ALTER TABLE ONLY public.history ATTACH PARTITION public.history_d20790 FOR VALUES FROM ('1796256000000') TO ('1796342400000');
ALTER TABLE ONLY public.history ATTACH PARTITION public.history_d20791 FOR VALUES FROM ('1796342400000') TO ('1796428800000');
ALTER TABLE ONLY public.history ATTACH PARTITION public.history_default DEFAULT;
INSERT INTO public.attempts VALUES ('041c4fcc-b3a5-0f62-a2b5-68ad36b446ca', 1, 1, 1795815036364, 1795815036366, 'failed', 500, NULL, 'answered 500 Internal Server Error', 'old', 1795815036344, NULL, NULL);
INSERT INTO public.attempts VALUES ('a0155990-655e-afe8-51ff-0b39a8e64c95', 1, 1, 1795815038990, 1795815039001, 'ok', NULL, '{"ok": true}', NULL, 'old', 1795815036412, NULL, 'w2');
INSERT INTO public.destinations VALUES (0, 'signed', 'webhook', '{"webhook":{"url":"http://receiver.invalid:1/ok"}}', '\x01d46bc172cefdc108b48609a1e34efd87c961081186aa0a775fa79db7ff1aaa7dc23b6e8b262b3f3b18202f0b87da0abab5a0e294ae9c283b530ae2c28b2543d3c93c48fc6bd97e2f18361f28d473dec9cafd9e', false, 1, 1795815036202, 1795815036202);
INSERT INTO public.ended_ids VALUES ('ecd88bda-43d3-b594-4536-da731b1f5459', '\x57fa1cbacff5e8f98d94365cc014ce1c', 1, 1796419836325);
INSERT INTO public.ended_ids VALUES ('0e93007d-233d-10ca-3d93-d5227dd7dd47', '\xcb2100550dd0037704dacc6f49aed92e', 1, 1796419836361);
INSERT INTO public.ended_ids VALUES ('d3e5e582-d41b-6073-209f-4d3f9b2d9ee0', '\x1efe4093de1abb94eeec3b151e00cf80', 1, 1796419836382);
INSERT INTO public.ended_ids VALUES ('efb3b10e-6aad-4233-5598-bccab6922d81', '\x3a3cf47fceae98e154346a00533c3492', 1, 1796419838007);
INSERT INTO public.forecast VALUES (1, 1795815040288, '{"scales":[{"counted_at":1795815040288,"live":13,"until":1795906800000,"bins":{"29930250":3,"29930251":1,"29930255":1}},{"counted_at":1795815040288,"live":13,"until":1801180800000,"bins":{}},{"counted_at":1795815040288,"live":13,"until":2112048000000,"bins":{}}],"later":8}');
INSERT INTO public.history_d20784 VALUES ('ecd88bda-43d3-b594-4536-da731b1f5459', 'cancelled', true, NULL, 61, 5, 4922899200000, 4922899200000, NULL, 1, 0, 0, 2, 0, -943944363294576478, false, false, false, false, '{"webhook":{"url":"http://receiver.invalid:1/ok"}}', '\x7b226e223a20317d', NULL, NULL, '\x57fa1cbacff5e8f98d94365cc014ce1c', 1795815036312, NULL, NULL, 1795815036325, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.history_d20784 VALUES ('0e93007d-233d-10ca-3d93-d5227dd7dd47', 'delivered', true, NULL, 46, 4, 1795815036330, 1795815056347, NULL, 1, 1, 1, 1, 1, -943944363294576478, false, false, false, false, '{"webhook":{"url":"http://receiver.invalid:1/ok"}}', '\x7b226e223a20317d', NULL, NULL, '\xcb2100550dd0037704dacc6f49aed92e', 1795815036330, 1795815036347, 'old', 1795815036361, '{"generation":1,"attempt":1,"started_at":1795815036350,"ended_at":1795815036352,"result":"ok","status":200,"node":"old"}', 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.history_d20784 VALUES ('d3e5e582-d41b-6073-209f-4d3f9b2d9ee0', 'dead', true, NULL, 57, 7, 1795815036337, 1795815056352, NULL, 1, 1, 1, 1, 1, -943944363294576478, false, false, false, false, '{"webhook":{"url":"http://receiver.invalid:1/gone"}}', '\x7b226e223a20317d', NULL, '{"retry":{"attempts":1,"first":"PT1S","cap":"PT1S"}}', '\x1efe4093de1abb94eeec3b151e00cf80', 1795815036337, 1795815036352, 'old', 1795815036382, '{"generation":1,"attempt":1,"started_at":1795815036360,"ended_at":1795815036361,"result":"failed","status":410,"detail":"answered 410 Gone","node":"old"}', 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.history_d20784 VALUES ('efb3b10e-6aad-4233-5598-bccab6922d81', 'once:20261127T213038000Z', true, NULL, 37, 4, 1795815038000, 1795815057951, NULL, 1, 1, 1, 1, 1, -943944363294576478, false, false, false, false, '{"webhook":{"url":"http://receiver.invalid:1/ok"}}', '\x7b226e223a20317d', NULL, NULL, '\x3a3cf47fceae98e154346a00533c3492', 1795815036447, 1795815037951, 'old', 1795815038007, '{"generation":1,"attempt":1,"started_at":1795815038001,"ended_at":1795815038003,"result":"ok","status":200,"node":"old"}', 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'once', 1795815038000, NULL, NULL, 1795815098000, NULL);
INSERT INTO public.nodes VALUES ('old', '01a21eead48171ff9de1cdc9e506987b', '127.0.0.1:17999', '0.1.0', 1795815036101, 1795815040242, 2);
INSERT INTO public.operations VALUES (0, '01a21eea-d5e2-70ca-bf70-59df212f7a1d', 'pause', '{"label.kind":"paused"}', '{"uids":[],"state":null,"lanes":null,"destination":null,"owner":null,"labels":[["kind","paused"]],"due_after":null,"due_before":null,"ended_from":null,"ended_before":1795815036386}', false, 1, NULL, 1, 1, '{}', NULL, 1795815036388, 1795815036412, 'old', '01a21eea-d4a3-75ea-bb01-5451c11b7555', 1795815041404);
INSERT INTO public.places VALUES ('c6f431df-046f-fe7a-af14-aa05b33f32cf', 0, 1, 1, 1, 6011637480858454761, 'w1', 0, 1795815338978, 1795815038978);
INSERT INTO public.places VALUES ('a0155990-655e-afe8-51ff-0b39a8e64c95', 0, 1, 1, 1, 2717829247848120040, 'w2', 3, 1795815039001, 1795815038990);
INSERT INTO public.queues VALUES (0, 'tasks', '{"lease":"PT5M"}', false, 1, 1795815036267, 1795815036267);
INSERT INTO public.schedules VALUES (0, 'far-daily', 61, 0, '{"when":{"daily":{"at":"09:00","every_days":1}},"zone":"Europe/Berlin","start_at":"2126-01-01T00:00:00.000Z","missed":{"policy":"fire_all","within":"PT1H"},"overlap":"allow"}', '{"minute":false,"priority":"normal","kind":2,"target":"{\"queue\":\"tasks\"}","data":"{\"n\":1,\"kind\":\"daily\"}","template":"task","policies":{},"request_hash":[172,107,119,151,112,209,110,158,5,89,194,185,215,92,193,171]}', '{"daily": {"at": "09:00"}, "zone": "Europe/Berlin", "start_at": "2126-01-01T00:00:00Z", "target": {"queue": "tasks"}, "template": "task", "data": {"kind": "daily"}}', '\xac6b779770d16e9e0559c2b9d75cc1ab', 2, -7024747511476580872, 'any', 'task', NULL, NULL, 1, 4922928000000, NULL, 4922928000000, 0, NULL, 1, 1795815036435, 1795815036435, '2025b');
INSERT INTO public.schedules VALUES (0, 'resting', 4, 1, '{"when":{"every":"P1D"},"zone":"UTC","start_at":"2126-01-01T00:00:00.000Z","missed":{"policy":"fire_all","within":"PT1H"},"overlap":"allow"}', '{"minute":false,"priority":"normal","kind":0,"target":"{\"webhook\":{\"url\":\"http://receiver.invalid:1/ok\"}}","data":"{\"n\": 1}","policies":{},"request_hash":[41,189,9,115,36,207,83,227,248,185,154,209,156,92,188,129]}', '{"every": "P1D", "start_at": "2126-01-01T00:00:00Z", "target": {"webhook": {"url": "http://receiver.invalid:1/ok"}}, "data": {"n": 1}}', '\x29bd097324cf53e3f8b99ad19c5cbc81', 0, -943944363294576478, NULL, NULL, NULL, NULL, 1, 4922899200000, NULL, 4922985600000, 0, NULL, 2, 1795815036457, 1795815036467, '2025b');
INSERT INTO public.schedules VALUES (0, 'once', 42, 2, '{"when":{"every":"PT1H"},"zone":"UTC","start_at":"2026-11-27T21:30:38.000Z","max_occurrences":1,"missed":{"policy":"fire_all","within":"PT1H"},"overlap":"allow"}', '{"minute":false,"priority":"normal","kind":0,"target":"{\"webhook\":{\"url\":\"http://receiver.invalid:1/ok\"}}","data":"{\"n\": 1}","policies":{},"request_hash":[58,60,244,127,206,174,152,225,84,52,106,0,83,60,52,146]}', '{"every": "PT1H", "max_occurrences": 1, "start_at": "2026-11-27T21:30:38Z", "target": {"webhook": {"url": "http://receiver.invalid:1/ok"}}, "data": {"n": 1}}', '\x3a3cf47fceae98e154346a00533c3492', 0, -943944363294576478, NULL, NULL, NULL, NULL, 1, 1795815038000, NULL, NULL, 0, NULL, 1, 1795815036447, 1795815036447, '2025b');
INSERT INTO public.seaql_migrations VALUES ('m20261121_000001_timers', 1795815035);
INSERT INTO public.seaql_migrations VALUES ('m20261121_000002_wheels', 1795815035);
INSERT INTO public.seaql_migrations VALUES ('m20261121_000003_leaner', 1795815035);
INSERT INTO public.seaql_migrations VALUES ('m20261122_000004_target_kind', 1795815035);
INSERT INTO public.seaql_migrations VALUES ('m20261122_000005_null_kind', 1795815035);
INSERT INTO public.seaql_migrations VALUES ('m20261122_000006_observe', 1795815035);
INSERT INTO public.seaql_migrations VALUES ('m20261122_000007_dead', 1795815035);
INSERT INTO public.seaql_migrations VALUES ('m20261123_000008_release', 1795815035);
INSERT INTO public.seaql_migrations VALUES ('m20261123_000009_lists', 1795815035);
INSERT INTO public.seaql_migrations VALUES ('m20261124_000010_destinations', 1795815035);
INSERT INTO public.seaql_migrations VALUES ('m20261124_000011_priority', 1795815035);
INSERT INTO public.seaql_migrations VALUES ('m20261124_000012_merge', 1795815035);
INSERT INTO public.seaql_migrations VALUES ('m20261124_000013_outbox', 1795815035);
INSERT INTO public.seaql_migrations VALUES ('m20261124_000014_spread_operations', 1795815035);
INSERT INTO public.seaql_migrations VALUES ('m20261125_000015_taken', 1795815035);
INSERT INTO public.seaql_migrations VALUES ('m20261125_000016_queues', 1795815035);
INSERT INTO public.seaql_migrations VALUES ('m20261125_000017_schedules', 1795815035);
INSERT INTO public.seaql_migrations VALUES ('m20261125_000018_templates', 1795815035);
INSERT INTO public.seaql_migrations VALUES ('m20261126_000019_schedules_zones', 1795815035);
INSERT INTO public.seaql_migrations VALUES ('m20261126_000020_queue_counts', 1795815035);
INSERT INTO public.shards VALUES (0, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (1, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (2, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (3, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (4, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (5, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (6, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (22, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (23, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (24, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (25, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (26, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (27, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (28, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (44, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (45, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (46, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (47, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (48, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (49, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (50, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (51, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (52, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (53, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (7, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (8, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (9, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (10, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (11, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (12, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (13, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (14, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (15, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (16, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (17, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (18, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (19, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (20, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (21, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (29, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (30, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (31, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (32, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (33, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (34, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (35, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (36, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (37, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (38, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (39, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (40, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (41, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (42, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (43, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (54, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (55, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (56, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (57, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (58, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (59, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (60, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (61, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (62, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.shards VALUES (63, 1, 'old', 1795815043245, 1795818660000, 1795815041000, '8a02b081be11c2d1a437f6522ac60c397e4ddc01 01a21eead4de76dd9ec2da10ae90a643', -1, 1795815040245, 1795815036115, NULL);
INSERT INTO public.store VALUES (1, 7, 'default', 64, 1795815035832, '01a21eead3b973858207fb31fa966431', 2, 1, 1795815040244, NULL, NULL, NULL);
INSERT INTO public.subscription_nodes VALUES ('01a21eead48171ff9de1cdc9e506987b', 1795815036280);
INSERT INTO public.subscription_set VALUES (1, 1795815036280);
INSERT INTO public.subscriptions OVERRIDING SYSTEM VALUE VALUES (1, 0, 'log', 'signed', '{"events":["timer.delivered"],"filter":{"owner":"user:1"},"include_data":false}', 1, 1795815036282, 1795815036282, NULL);
INSERT INTO public.templates VALUES (0, 'task', '{"type": "object", "required": ["n"]}', '{"n": 1, "kind": "task"}', '\xd4509cdd9de86f9207b5b6b5e999303b', 1, 1795815036261, 1795815036261);
INSERT INTO public.timers VALUES ('7a06206c-743b-5279-7f5f-c6e35ac856d9', 'far', true, 'user:1', 7, 0, 4922899200000, 4922899200000, NULL, 1, 0, 0, 1, 0, -943944363294576478, false, false, false, false, '{"webhook":{"url":"http://receiver.invalid:1/ok"}}', '\x7b226e223a20317d', '{"app":"shop"}', '{"retry":{"attempts":5,"first":"PT0.1S","cap":"PT1S"}}', '\x266e3c6df36c46995eca829992c4837e', 1795815036297, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.timers VALUES ('0fa8bdb4-fd94-32df-583c-a7d6245378ff', 'minute', true, NULL, 43, 0, 4922899260000, 4922899260000, NULL, 1, 0, 0, 1, 0, -943944363294576478, true, false, false, false, '{"webhook":{"url":"http://receiver.invalid:1/ok"}}', '\x7b226e223a20317d', NULL, NULL, '\xdb22e1a01705387d050deb009ae896fa', 1795815036305, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.timers VALUES ('b4e7bafe-c656-5c46-b86a-6e08d50c2aa1', 'by-destination', true, NULL, 9, 0, 1795815044366, 1795815044366, NULL, 1, 0, 0, 1, 0, -3489334251334495547, false, false, false, false, '{"destination":"signed"}', '\x7b226e223a20317d', NULL, NULL, '\xc949440ecd2955161834d8e15dd50ec5', 1795815036366, NULL, NULL, NULL, 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.timers VALUES ('041c4fcc-b3a5-0f62-a2b5-68ad36b446ca', 'retrying', true, NULL, 20, 2, 1795815036344, 1795815072703, NULL, 1, 1, 1, 1, 1, -943944363294576478, false, false, false, false, '{"webhook":{"url":"http://receiver.invalid:1/fail"}}', '\x7b226e223a20317d', NULL, '{"retry":{"attempts":8,"first":"PT30S","cap":"PT1M"}}', '\xae469b0f32e4609fd0a99f4f4d4ed0d4', 1795815036344, 1795815036358, 'old', 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.timers VALUES ('083e3e3b-5cfe-98d2-84bb-584b21d57eb4', 'claimed', true, NULL, 50, 1, 1795815036359, 1795815056373, NULL, 1, 1, 1, 1, 1, -943944363294576478, false, false, false, false, '{"webhook":{"url":"http://receiver.invalid:1/hang"}}', '\x7b226e223a20317d', NULL, NULL, '\xc33f681110da9c72c4818ec7777677a8', 1795815036359, 1795815036373, 'old', 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.timers VALUES ('7de45d9f-019c-9090-3eae-06b377498f6b', 'with-secret', true, NULL, 57, 0, 1795815044378, 1795815044378, NULL, 1, 0, 0, 1, 0, -943944363294576478, false, false, false, false, '{"webhook":{"url":"http://receiver.invalid:1/ok","secret":"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}}', '\x7b226e223a20317d', NULL, NULL, '\xe383e1469746dc2f4e5ee3dea5471a2a', 1795815036378, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.timers VALUES ('109b7e15-7832-8572-e519-6d916bffe134', '', true, NULL, 38, 0, 4922899200000, 4922899200000, NULL, 1, 0, 0, 1, 0, -7024747511476580872, false, false, false, false, '{"queue":"tasks"}', '\x7b226e223a20317d', NULL, NULL, '\x0b2adbb237a85f6d2f15e3744907860f', 1795815036391, NULL, NULL, NULL, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, -6593178663315939344, 4922899200000, 1, 0, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.timers VALUES ('8b42c290-f6d8-5926-1372-9ee186174708', 'later-task', true, NULL, 13, 0, 4922899200000, 4922899200000, NULL, 1, 0, 0, 1, 0, -7024747511476580872, false, false, false, false, '{"queue":"tasks"}', '\x7b226e223a20317d', NULL, NULL, '\x0b2adbb237a85f6d2f15e3744907860f', 1795815036400, NULL, NULL, NULL, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, -6593178663315939344, 4922899200000, 1, 0, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.timers VALUES ('9e7b7e15-8f87-1387-0798-15ecdb8cd991', 'paused', true, NULL, 43, 3, 4922899200000, 253402300799999, NULL, 1, 0, 0, 2, 0, -943944363294576478, false, false, false, false, '{"webhook":{"url":"http://receiver.invalid:1/ok"}}', '\x7b226e223a20317d', '{"kind":"paused"}', NULL, '\x96b462ff9c0c689c135302778022eb14', 1795815036382, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.timers VALUES ('949af498-8b9f-9191-3b74-5c8a0038f91a', 'far-daily:21260101T080000000Z', true, NULL, 60, 0, 4922928000000, 4922928000000, NULL, 1, 0, 0, 1, 0, -7024747511476580872, false, false, false, false, '{"queue":"tasks"}', '\x7b226e223a312c226b696e64223a226461696c79227d', NULL, NULL, '\xac6b779770d16e9e0559c2b9d75cc1ab', 1795815036435, NULL, NULL, NULL, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, -6593178663315939344, 4922928000000, 1, 0, 'far-daily', 4922928000000, NULL, NULL, 4922928060000, 'task');
INSERT INTO public.timers VALUES ('8d42bd88-decd-c192-8572-07c02172b646', 'resting:21260101T000000000Z', true, NULL, 47, 0, 4922899200000, 4922899200000, NULL, 1, 0, 0, 1, 0, -943944363294576478, false, false, false, false, '{"webhook":{"url":"http://receiver.invalid:1/ok"}}', '\x7b226e223a20317d', NULL, NULL, '\x29bd097324cf53e3f8b99ad19c5cbc81', 1795815036457, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'resting', 4922899200000, NULL, NULL, 4922899198000, NULL);
INSERT INTO public.timers VALUES ('c6f431df-046f-fe7a-af14-aa05b33f32cf', 'leased', true, NULL, 11, 1, 1795815036423, 1795815338978, NULL, 1, 1, 1, 1, 0, -7024747511476580872, false, false, false, false, '{"queue":"tasks"}', '\x7b226e223a20317d', NULL, NULL, '\xe779d7c8e0677ccdc7ca967b73344c93', 1795815036423, 1795815038978, 'old', NULL, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '{"to":"worker:w1","times":1,"repeat":false}', 1005090762557839250, NULL, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.timers VALUES ('a0155990-655e-afe8-51ff-0b39a8e64c95', 'task', true, NULL, 10, 0, 1795815036412, 253402300799999, NULL, 1, 1, 1, 1, 0, -7024747511476580872, false, false, false, false, '{"queue":"tasks"}', '\x7b226e223a312c226b696e64223a227461736b227d', NULL, NULL, '\x29aa5ce5639f47176b880eccdfbe3a6d', 1795815036412, 1795815038990, 'old', NULL, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '{"to":"group:day","times":2,"repeat":false}', 992171696898796123, 1795815036412, 1, 1, NULL, NULL, NULL, NULL, NULL, 'task');
INSERT INTO public.totals VALUES ('cancelled', 71, 1);
INSERT INTO public.totals VALUES ('delivered', 71, 1);
INSERT INTO public.totals VALUES ('dead', 68, 1);
INSERT INTO public.totals VALUES ('registered', 68, 4);
INSERT INTO public.totals VALUES ('registered', 69, 5);
INSERT INTO public.totals VALUES ('registered', 70, 5);
INSERT INTO public.totals VALUES ('registered', 71, 3);
INSERT INTO public.totals VALUES ('delivered', 68, 1);
SELECT pg_catalog.setval('public.outbox_seq_seq', 1, false);
SELECT pg_catalog.setval('public.skips_id_seq', 1, false);
SELECT pg_catalog.setval('public.subscriptions_id_seq', 1, true);
ALTER TABLE ONLY public.attempts
    ADD CONSTRAINT attempts_pkey PRIMARY KEY (uid, generation, attempt);
ALTER TABLE ONLY public.destination_slots
    ADD CONSTRAINT destination_slots_pkey PRIMARY KEY (lane);
ALTER TABLE ONLY public.destinations
    ADD CONSTRAINT destinations_pkey PRIMARY KEY (namespace, name);
ALTER TABLE ONLY public.ended_ids
    ADD CONSTRAINT ended_ids_pkey PRIMARY KEY (uid);
ALTER TABLE ONLY public.forecast
    ADD CONSTRAINT forecast_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.node_reports
    ADD CONSTRAINT node_reports_pkey PRIMARY KEY (name);
ALTER TABLE ONLY public.nodes
    ADD CONSTRAINT nodes_pkey PRIMARY KEY (name);
ALTER TABLE ONLY public.operations
    ADD CONSTRAINT operations_pkey PRIMARY KEY (namespace, id);
ALTER TABLE ONLY public.outbox
    ADD CONSTRAINT outbox_pkey PRIMARY KEY (namespace, subscription, shard, seq);
ALTER TABLE ONLY public.places
    ADD CONSTRAINT places_pkey PRIMARY KEY (uid, number);
ALTER TABLE ONLY public.queues
    ADD CONSTRAINT queues_pkey PRIMARY KEY (namespace, name);
ALTER TABLE ONLY public.schedules
    ADD CONSTRAINT schedules_pkey PRIMARY KEY (namespace, id);
ALTER TABLE ONLY public.seaql_migrations
    ADD CONSTRAINT seaql_migrations_pkey PRIMARY KEY (version);
ALTER TABLE ONLY public.shards
    ADD CONSTRAINT shards_pkey PRIMARY KEY (shard);
ALTER TABLE ONLY public.skips
    ADD CONSTRAINT skips_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.store
    ADD CONSTRAINT store_pkey PRIMARY KEY (one);
ALTER TABLE ONLY public.subscription_nodes
    ADD CONSTRAINT subscription_nodes_pkey PRIMARY KEY (incarnation);
ALTER TABLE ONLY public.subscription_set
    ADD CONSTRAINT subscription_set_pkey PRIMARY KEY (one);
ALTER TABLE ONLY public.subscriptions
    ADD CONSTRAINT subscriptions_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.templates
    ADD CONSTRAINT templates_pkey PRIMARY KEY (namespace, name);
ALTER TABLE ONLY public.timers
    ADD CONSTRAINT timers_pkey PRIMARY KEY (uid);
ALTER TABLE ONLY public.totals
    ADD CONSTRAINT totals_pkey PRIMARY KEY (name, slot);
CREATE INDEX attempts_ended_at ON public.attempts USING btree (ended_at);
CREATE INDEX ended_ids_until ON public.ended_ids USING btree (until);
CREATE INDEX history_by_due ON ONLY public.history USING btree (state, due_at, uid);
CREATE INDEX history_by_lane ON ONLY public.history USING btree (lane, due_at, uid) WHERE (kind IS NOT NULL);
CREATE INDEX history_by_owner ON ONLY public.history USING btree (owner, due_at, uid) WHERE (owner IS NOT NULL);
CREATE INDEX history_by_schedule ON ONLY public.history USING btree (schedule, due_at, uid) WHERE (schedule IS NOT NULL);
CREATE INDEX history_dead ON ONLY public.history USING btree (ended_at) WHERE (state = 7);
CREATE INDEX history_d20784_ended_at_idx ON public.history_d20784 USING btree (ended_at) WHERE (state = 7);
CREATE INDEX history_d20784_lane_due_at_uid_idx ON public.history_d20784 USING btree (lane, due_at, uid) WHERE (kind IS NOT NULL);
CREATE INDEX history_d20784_owner_due_at_uid_idx ON public.history_d20784 USING btree (owner, due_at, uid) WHERE (owner IS NOT NULL);
CREATE INDEX history_d20784_schedule_due_at_uid_idx ON public.history_d20784 USING btree (schedule, due_at, uid) WHERE (schedule IS NOT NULL);
CREATE INDEX history_schedule_ended ON ONLY public.history USING btree (schedule, ended_at) WHERE (schedule IS NOT NULL);
CREATE INDEX history_d20784_schedule_ended_at_idx ON public.history_d20784 USING btree (schedule, ended_at) WHERE (schedule IS NOT NULL);
CREATE INDEX history_d20784_state_due_at_uid_idx ON public.history_d20784 USING btree (state, due_at, uid);
CREATE INDEX history_uid ON ONLY public.history USING btree (uid);
CREATE INDEX history_d20784_uid_idx ON public.history_d20784 USING btree (uid);
CREATE INDEX history_d20785_ended_at_idx ON public.history_d20785 USING btree (ended_at) WHERE (state = 7);
CREATE INDEX history_d20785_lane_due_at_uid_idx ON public.history_d20785 USING btree (lane, due_at, uid) WHERE (kind IS NOT NULL);
CREATE INDEX history_d20785_owner_due_at_uid_idx ON public.history_d20785 USING btree (owner, due_at, uid) WHERE (owner IS NOT NULL);
CREATE INDEX history_d20785_schedule_due_at_uid_idx ON public.history_d20785 USING btree (schedule, due_at, uid) WHERE (schedule IS NOT NULL);
CREATE INDEX history_d20785_schedule_ended_at_idx ON public.history_d20785 USING btree (schedule, ended_at) WHERE (schedule IS NOT NULL);
CREATE INDEX history_d20785_state_due_at_uid_idx ON public.history_d20785 USING btree (state, due_at, uid);
CREATE INDEX history_d20785_uid_idx ON public.history_d20785 USING btree (uid);
CREATE INDEX history_d20786_ended_at_idx ON public.history_d20786 USING btree (ended_at) WHERE (state = 7);
CREATE INDEX history_d20786_lane_due_at_uid_idx ON public.history_d20786 USING btree (lane, due_at, uid) WHERE (kind IS NOT NULL);
CREATE INDEX history_d20786_owner_due_at_uid_idx ON public.history_d20786 USING btree (owner, due_at, uid) WHERE (owner IS NOT NULL);
CREATE INDEX history_d20786_schedule_due_at_uid_idx ON public.history_d20786 USING btree (schedule, due_at, uid) WHERE (schedule IS NOT NULL);
CREATE INDEX history_d20786_schedule_ended_at_idx ON public.history_d20786 USING btree (schedule, ended_at) WHERE (schedule IS NOT NULL);
CREATE INDEX history_d20786_state_due_at_uid_idx ON public.history_d20786 USING btree (state, due_at, uid);
CREATE INDEX history_d20786_uid_idx ON public.history_d20786 USING btree (uid);
CREATE INDEX history_d20787_ended_at_idx ON public.history_d20787 USING btree (ended_at) WHERE (state = 7);
CREATE INDEX history_d20787_lane_due_at_uid_idx ON public.history_d20787 USING btree (lane, due_at, uid) WHERE (kind IS NOT NULL);
CREATE INDEX history_d20787_owner_due_at_uid_idx ON public.history_d20787 USING btree (owner, due_at, uid) WHERE (owner IS NOT NULL);
CREATE INDEX history_d20787_schedule_due_at_uid_idx ON public.history_d20787 USING btree (schedule, due_at, uid) WHERE (schedule IS NOT NULL);
CREATE INDEX history_d20787_schedule_ended_at_idx ON public.history_d20787 USING btree (schedule, ended_at) WHERE (schedule IS NOT NULL);
CREATE INDEX history_d20787_state_due_at_uid_idx ON public.history_d20787 USING btree (state, due_at, uid);
CREATE INDEX history_d20787_uid_idx ON public.history_d20787 USING btree (uid);
CREATE INDEX history_d20788_ended_at_idx ON public.history_d20788 USING btree (ended_at) WHERE (state = 7);
CREATE INDEX history_d20788_lane_due_at_uid_idx ON public.history_d20788 USING btree (lane, due_at, uid) WHERE (kind IS NOT NULL);
CREATE INDEX history_d20788_owner_due_at_uid_idx ON public.history_d20788 USING btree (owner, due_at, uid) WHERE (owner IS NOT NULL);
CREATE INDEX history_d20788_schedule_due_at_uid_idx ON public.history_d20788 USING btree (schedule, due_at, uid) WHERE (schedule IS NOT NULL);
CREATE INDEX history_d20788_schedule_ended_at_idx ON public.history_d20788 USING btree (schedule, ended_at) WHERE (schedule IS NOT NULL);
CREATE INDEX history_d20788_state_due_at_uid_idx ON public.history_d20788 USING btree (state, due_at, uid);
CREATE INDEX history_d20788_uid_idx ON public.history_d20788 USING btree (uid);
CREATE INDEX history_d20789_ended_at_idx ON public.history_d20789 USING btree (ended_at) WHERE (state = 7);
CREATE INDEX history_d20789_lane_due_at_uid_idx ON public.history_d20789 USING btree (lane, due_at, uid) WHERE (kind IS NOT NULL);
CREATE INDEX history_d20789_owner_due_at_uid_idx ON public.history_d20789 USING btree (owner, due_at, uid) WHERE (owner IS NOT NULL);
CREATE INDEX history_d20789_schedule_due_at_uid_idx ON public.history_d20789 USING btree (schedule, due_at, uid) WHERE (schedule IS NOT NULL);
CREATE INDEX history_d20789_schedule_ended_at_idx ON public.history_d20789 USING btree (schedule, ended_at) WHERE (schedule IS NOT NULL);
CREATE INDEX history_d20789_state_due_at_uid_idx ON public.history_d20789 USING btree (state, due_at, uid);
CREATE INDEX history_d20789_uid_idx ON public.history_d20789 USING btree (uid);
CREATE INDEX history_d20790_ended_at_idx ON public.history_d20790 USING btree (ended_at) WHERE (state = 7);
CREATE INDEX history_d20790_lane_due_at_uid_idx ON public.history_d20790 USING btree (lane, due_at, uid) WHERE (kind IS NOT NULL);
CREATE INDEX history_d20790_owner_due_at_uid_idx ON public.history_d20790 USING btree (owner, due_at, uid) WHERE (owner IS NOT NULL);
CREATE INDEX history_d20790_schedule_due_at_uid_idx ON public.history_d20790 USING btree (schedule, due_at, uid) WHERE (schedule IS NOT NULL);
CREATE INDEX history_d20790_schedule_ended_at_idx ON public.history_d20790 USING btree (schedule, ended_at) WHERE (schedule IS NOT NULL);
CREATE INDEX history_d20790_state_due_at_uid_idx ON public.history_d20790 USING btree (state, due_at, uid);
CREATE INDEX history_d20790_uid_idx ON public.history_d20790 USING btree (uid);
CREATE INDEX history_d20791_ended_at_idx ON public.history_d20791 USING btree (ended_at) WHERE (state = 7);
CREATE INDEX history_d20791_lane_due_at_uid_idx ON public.history_d20791 USING btree (lane, due_at, uid) WHERE (kind IS NOT NULL);
CREATE INDEX history_d20791_owner_due_at_uid_idx ON public.history_d20791 USING btree (owner, due_at, uid) WHERE (owner IS NOT NULL);
CREATE INDEX history_d20791_schedule_due_at_uid_idx ON public.history_d20791 USING btree (schedule, due_at, uid) WHERE (schedule IS NOT NULL);
CREATE INDEX history_d20791_schedule_ended_at_idx ON public.history_d20791 USING btree (schedule, ended_at) WHERE (schedule IS NOT NULL);
CREATE INDEX history_d20791_state_due_at_uid_idx ON public.history_d20791 USING btree (state, due_at, uid);
CREATE INDEX history_d20791_uid_idx ON public.history_d20791 USING btree (uid);
CREATE INDEX history_default_by_due ON public.history_default USING btree (state, due_at, uid);
CREATE INDEX history_default_by_lane ON public.history_default USING btree (lane, due_at, uid) WHERE (kind IS NOT NULL);
CREATE INDEX history_default_by_owner ON public.history_default USING btree (owner, due_at, uid) WHERE (owner IS NOT NULL);
CREATE INDEX history_default_by_schedule ON public.history_default USING btree (schedule, due_at, uid) WHERE (schedule IS NOT NULL);
CREATE INDEX history_default_ended_at ON public.history_default USING btree (ended_at);
CREATE INDEX history_default_ended_at_idx ON public.history_default USING btree (ended_at) WHERE (state = 7);
CREATE INDEX history_default_schedule_ended ON public.history_default USING btree (schedule, ended_at) WHERE (schedule IS NOT NULL);
CREATE INDEX history_default_uid_idx ON public.history_default USING btree (uid);
CREATE INDEX operations_running ON public.operations USING btree (lease_until) WHERE (state = 0);
CREATE INDEX places_holder ON public.places USING btree (holder) WHERE (held = ANY (ARRAY[0, 2]));
CREATE INDEX replays_at ON public.replays USING btree (at);
CREATE INDEX schedules_by_lane ON public.schedules USING btree (lane);
CREATE INDEX schedules_by_template ON public.schedules USING btree (template) WHERE (template IS NOT NULL);
CREATE INDEX schedules_make_at ON public.schedules USING btree (shard, make_at) WHERE (make_at IS NOT NULL);
CREATE UNIQUE INDEX shards_epoch ON public.shards USING btree (shard, epoch);
CREATE INDEX skips_by_schedule ON public.skips USING btree (namespace, schedule, first_nominal);
CREATE UNIQUE INDEX subscriptions_by_name ON public.subscriptions USING btree (namespace, name) WHERE (removed_at IS NULL);
CREATE INDEX timers_by_due ON public.timers USING btree (due_at, uid);
CREATE INDEX timers_by_lane ON public.timers USING btree (lane, due_at, uid) WHERE (kind IS NOT NULL);
CREATE INDEX timers_by_owner ON public.timers USING btree (owner, due_at, uid) WHERE (owner IS NOT NULL);
CREATE INDEX timers_by_schedule ON public.timers USING btree (schedule, due_at, uid) WHERE (schedule IS NOT NULL);
CREATE INDEX timers_by_template ON public.timers USING btree (template) WHERE (template IS NOT NULL);
CREATE INDEX timers_held ON public.timers USING btree (state, due_at, uid) WHERE (state = ANY (ARRAY[2, 3]));
CREATE INDEX timers_high ON public.timers USING btree (shard, wake_at) WHERE (priority = 1);
CREATE INDEX timers_judged ON public.timers USING btree (shard, judge_after) WHERE ((judge_after IS NOT NULL) AND (state = 0));
CREATE INDEX timers_leased ON public.timers USING btree (lane) WHERE ((state = 1) AND (audience IS NOT NULL));
CREATE INDEX timers_merge ON public.timers USING btree (merge_key, due_at, uid) WHERE (merge_key IS NOT NULL);
CREATE INDEX timers_overlap ON public.timers USING btree (shard, due_at) WHERE ((overlap IS NOT NULL) AND (state = 0));
CREATE INDEX timers_ready ON public.timers USING btree (audience, COALESCE((priority)::integer, 0), ready_at) WHERE (ready_at IS NOT NULL);
CREATE INDEX timers_shard_wake ON public.timers USING btree (shard, wake_at, uid);
ALTER INDEX public.history_dead ATTACH PARTITION public.history_d20784_ended_at_idx;
ALTER INDEX public.history_by_lane ATTACH PARTITION public.history_d20784_lane_due_at_uid_idx;
ALTER INDEX public.history_by_owner ATTACH PARTITION public.history_d20784_owner_due_at_uid_idx;
ALTER INDEX public.history_by_schedule ATTACH PARTITION public.history_d20784_schedule_due_at_uid_idx;
ALTER INDEX public.history_schedule_ended ATTACH PARTITION public.history_d20784_schedule_ended_at_idx;
ALTER INDEX public.history_by_due ATTACH PARTITION public.history_d20784_state_due_at_uid_idx;
ALTER INDEX public.history_uid ATTACH PARTITION public.history_d20784_uid_idx;
ALTER INDEX public.history_dead ATTACH PARTITION public.history_d20785_ended_at_idx;
ALTER INDEX public.history_by_lane ATTACH PARTITION public.history_d20785_lane_due_at_uid_idx;
ALTER INDEX public.history_by_owner ATTACH PARTITION public.history_d20785_owner_due_at_uid_idx;
ALTER INDEX public.history_by_schedule ATTACH PARTITION public.history_d20785_schedule_due_at_uid_idx;
ALTER INDEX public.history_schedule_ended ATTACH PARTITION public.history_d20785_schedule_ended_at_idx;
ALTER INDEX public.history_by_due ATTACH PARTITION public.history_d20785_state_due_at_uid_idx;
ALTER INDEX public.history_uid ATTACH PARTITION public.history_d20785_uid_idx;
ALTER INDEX public.history_dead ATTACH PARTITION public.history_d20786_ended_at_idx;
ALTER INDEX public.history_by_lane ATTACH PARTITION public.history_d20786_lane_due_at_uid_idx;
ALTER INDEX public.history_by_owner ATTACH PARTITION public.history_d20786_owner_due_at_uid_idx;
ALTER INDEX public.history_by_schedule ATTACH PARTITION public.history_d20786_schedule_due_at_uid_idx;
ALTER INDEX public.history_schedule_ended ATTACH PARTITION public.history_d20786_schedule_ended_at_idx;
ALTER INDEX public.history_by_due ATTACH PARTITION public.history_d20786_state_due_at_uid_idx;
ALTER INDEX public.history_uid ATTACH PARTITION public.history_d20786_uid_idx;
ALTER INDEX public.history_dead ATTACH PARTITION public.history_d20787_ended_at_idx;
ALTER INDEX public.history_by_lane ATTACH PARTITION public.history_d20787_lane_due_at_uid_idx;
ALTER INDEX public.history_by_owner ATTACH PARTITION public.history_d20787_owner_due_at_uid_idx;
ALTER INDEX public.history_by_schedule ATTACH PARTITION public.history_d20787_schedule_due_at_uid_idx;
ALTER INDEX public.history_schedule_ended ATTACH PARTITION public.history_d20787_schedule_ended_at_idx;
ALTER INDEX public.history_by_due ATTACH PARTITION public.history_d20787_state_due_at_uid_idx;
ALTER INDEX public.history_uid ATTACH PARTITION public.history_d20787_uid_idx;
ALTER INDEX public.history_dead ATTACH PARTITION public.history_d20788_ended_at_idx;
ALTER INDEX public.history_by_lane ATTACH PARTITION public.history_d20788_lane_due_at_uid_idx;
ALTER INDEX public.history_by_owner ATTACH PARTITION public.history_d20788_owner_due_at_uid_idx;
ALTER INDEX public.history_by_schedule ATTACH PARTITION public.history_d20788_schedule_due_at_uid_idx;
ALTER INDEX public.history_schedule_ended ATTACH PARTITION public.history_d20788_schedule_ended_at_idx;
ALTER INDEX public.history_by_due ATTACH PARTITION public.history_d20788_state_due_at_uid_idx;
ALTER INDEX public.history_uid ATTACH PARTITION public.history_d20788_uid_idx;
ALTER INDEX public.history_dead ATTACH PARTITION public.history_d20789_ended_at_idx;
ALTER INDEX public.history_by_lane ATTACH PARTITION public.history_d20789_lane_due_at_uid_idx;
ALTER INDEX public.history_by_owner ATTACH PARTITION public.history_d20789_owner_due_at_uid_idx;
ALTER INDEX public.history_by_schedule ATTACH PARTITION public.history_d20789_schedule_due_at_uid_idx;
ALTER INDEX public.history_schedule_ended ATTACH PARTITION public.history_d20789_schedule_ended_at_idx;
ALTER INDEX public.history_by_due ATTACH PARTITION public.history_d20789_state_due_at_uid_idx;
ALTER INDEX public.history_uid ATTACH PARTITION public.history_d20789_uid_idx;
ALTER INDEX public.history_dead ATTACH PARTITION public.history_d20790_ended_at_idx;
ALTER INDEX public.history_by_lane ATTACH PARTITION public.history_d20790_lane_due_at_uid_idx;
ALTER INDEX public.history_by_owner ATTACH PARTITION public.history_d20790_owner_due_at_uid_idx;
ALTER INDEX public.history_by_schedule ATTACH PARTITION public.history_d20790_schedule_due_at_uid_idx;
ALTER INDEX public.history_schedule_ended ATTACH PARTITION public.history_d20790_schedule_ended_at_idx;
ALTER INDEX public.history_by_due ATTACH PARTITION public.history_d20790_state_due_at_uid_idx;
ALTER INDEX public.history_uid ATTACH PARTITION public.history_d20790_uid_idx;
ALTER INDEX public.history_dead ATTACH PARTITION public.history_d20791_ended_at_idx;
ALTER INDEX public.history_by_lane ATTACH PARTITION public.history_d20791_lane_due_at_uid_idx;
ALTER INDEX public.history_by_owner ATTACH PARTITION public.history_d20791_owner_due_at_uid_idx;
ALTER INDEX public.history_by_schedule ATTACH PARTITION public.history_d20791_schedule_due_at_uid_idx;
ALTER INDEX public.history_schedule_ended ATTACH PARTITION public.history_d20791_schedule_ended_at_idx;
ALTER INDEX public.history_by_due ATTACH PARTITION public.history_d20791_state_due_at_uid_idx;
ALTER INDEX public.history_uid ATTACH PARTITION public.history_d20791_uid_idx;
ALTER INDEX public.history_by_due ATTACH PARTITION public.history_default_by_due;
ALTER INDEX public.history_by_lane ATTACH PARTITION public.history_default_by_lane;
ALTER INDEX public.history_by_owner ATTACH PARTITION public.history_default_by_owner;
ALTER INDEX public.history_by_schedule ATTACH PARTITION public.history_default_by_schedule;
ALTER INDEX public.history_dead ATTACH PARTITION public.history_default_ended_at_idx;
ALTER INDEX public.history_schedule_ended ATTACH PARTITION public.history_default_schedule_ended;
ALTER INDEX public.history_uid ATTACH PARTITION public.history_default_uid_idx;
