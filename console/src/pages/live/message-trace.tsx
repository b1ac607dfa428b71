import { Button, Select, Switch, Text, TextInput } from '@mantine/core';
import { Plural, Trans, useLingui } from '@lingui/react/macro';
import { IconPlayerRecord, IconPlayerStop } from '@tabler/icons-react';
import { useEffect, useMemo, useState, type FormEvent, type ReactNode } from 'react';
import { Link } from 'wouter';
import { useChange, useRead, type Schemas } from '../../api/client';
import { send, withQuery } from '../../api/objects';
import { mayOnNode, useCaller } from '../../api/session';
import { formatBytes, formatNumber, formatTime } from '../../format';
import { quoted, ShowCall } from '../../ui/show-call';
import { StateBadge } from '../../ui/state-badge';
import { EmptyState, ErrorState, Loading } from '../../ui/states';
import { useUrlState } from '../../ui/url-state';
import { clientHref } from '../clients/client-href';
import { MessageRows } from './message-rows';
import { filterProblem } from './topics';
import {
  isProblem,
  messagesOf,
  outcomeOf,
  withSteps,
  type TracedMessage,
  type TraceOutcome,
  type TraceStep,
} from './trace';

type Recording = Schemas['MessageRecording'];

const recordingPath = '/api/v1/message-recording';
const tracePath = '/api/v1/message-trace';
const refreshMs = 1_000;
const pageSize = 1_000;
const rowHeight = 36;
const durations = [60, 300, 900, 3_600];

/** The steps of the recording, read page by page and then again while new ones arrive. */
function useSteps(recording: Recording | undefined) {
  const [steps, setSteps] = useState<TraceStep[]>();
  const [error, setError] = useState<Error | null>(null);
  const since = recording?.since_ms;
  const isRunning = recording?.running ?? false;
  useEffect(() => {
    setSteps(undefined);
    setError(null);
  }, [since]);
  useEffect(() => {
    if (since == null) return undefined;
    const abort = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    let after: string | null = null;
    const read = async () => {
      try {
        const page: { data: TraceStep[]; next: string | null } = await send(
          'GET',
          withQuery(tracePath, { after, limit: pageSize }),
          { signal: abort.signal },
        );
        setError(null);
        setSteps((known) => withSteps(known ?? [], page.data));
        // The last page is read again until it is full.
        after = page.next ?? after;
        if (page.next !== null) return void read();
      } catch (failure) {
        if (abort.signal.aborted) return;
        setError(failure as Error);
      }
      if (isRunning) timer = setTimeout(() => void read(), refreshMs);
    };
    void read();
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, [since, isRunning]);
  return { steps, error };
}

/** What happened to messages: each step from the publisher through rules to the subscribers, and why one was dropped. */
export function MessageTrace() {
  const { t } = useLingui();
  const caller = useCaller();
  const [filter, setFilter] = useUrlState('trace');
  const [client, setClient] = useUrlState('client');
  const [durationS, setDurationS] = useState(300);
  const [onlyProblems, setOnlyProblems] = useUrlState('problems');
  const recording = useRead([recordingPath], (signal) => send<Recording>('GET', recordingPath, { signal }), {
    every: refreshMs,
  });
  const { steps, error } = useSteps(recording.data);
  const body = {
    ...(filter.trim() === '' ? {} : { topic_filter: filter.trim() }),
    ...(client.trim() === '' ? {} : { client_id: client.trim() }),
    duration_s: durationS,
  };
  const start = useChange(() => send<Recording>('PUT', recordingPath, { body }), [[recordingPath]]);
  const stop = useChange(() => send<null>('DELETE', recordingPath), [[recordingPath]]);
  const problem = filter.trim() === '' ? null : filterProblem(filter.trim());
  const mayRecord = mayOnNode(caller, 'operator');
  const isRunning = recording.data?.running ?? false;
  const messages = useMemo(
    () =>
      (steps ?? []).length === 0
        ? []
        : messagesOf(steps ?? []).map((message) => ({ message, outcome: outcomeOf(message) })),
    [steps],
  );
  const shown = onlyProblems === '' ? messages : messages.filter(({ outcome }) => isProblem(outcome));
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (problem === null) start.mutate(undefined);
  };
  const words = [
    'why',
    ...(body.topic_filter ? [quoted(body.topic_filter)] : []),
    ...(body.client_id ? ['--client-id', quoted(body.client_id)] : []),
    `--seconds ${durationS}`,
  ];
  return (
    <section className="panel">
      <form className="table-toolbar wrap" onSubmit={submit}>
        <TextInput
          aria-label={t`Topic filter`}
          placeholder={t`Any topic, or a filter such as plant/#`}
          classNames={{ input: 'mono' }}
          w={270}
          value={filter}
          disabled={!mayRecord}
          error={problem ? t`not a topic filter` : false}
          onChange={(event) => setFilter(event.currentTarget.value)}
        />
        <TextInput
          aria-label={t`Client id`}
          placeholder={t`Any publisher or subscriber`}
          w={220}
          value={client}
          disabled={!mayRecord}
          onChange={(event) => setClient(event.currentTarget.value)}
        />
        <Select
          aria-label={t`Duration`}
          w={120}
          allowDeselect={false}
          disabled={!mayRecord}
          value={String(durationS)}
          onChange={(value) => setDurationS(Number(value))}
          data={durations.map((seconds) => ({
            value: String(seconds),
            label: seconds < 3_600 ? t`${seconds / 60} min` : t`1 h`,
          }))}
        />
        {mayRecord && (
          <Button
            type="submit"
            size="sm"
            variant={isRunning ? 'default' : 'filled'}
            leftSection={<IconPlayerRecord size={14} />}
            loading={start.isPending}
            disabled={problem !== null}
          >
            {isRunning ? <Trans>Start a new recording</Trans> : <Trans>Record</Trans>}
          </Button>
        )}
        {mayRecord && isRunning && (
          <Button
            size="sm"
            variant="default"
            leftSection={<IconPlayerStop size={14} />}
            loading={stop.isPending}
            onClick={() => stop.mutate(undefined)}
          >
            <Trans>Stop</Trans>
          </Button>
        )}
        <div className="row wrap table-actions">
          <Switch
            label={t`Only with problems`}
            checked={onlyProblems !== ''}
            onChange={(event) => setOnlyProblems(event.currentTarget.checked ? '1' : '')}
          />
          <ShowCall method="PUT" path={recordingPath} body={body} ctl={words.join(' ')} />
        </div>
      </form>
      {(start.error ?? stop.error) && (
        <Text size="sm" c="var(--tg-critical)" role="alert" px="sm" py={6}>
          {(start.error ?? stop.error)?.message}
        </Text>
      )}
      {recording.data?.since_ms != null && <RecordingState recording={recording.data} messages={messages.length} />}
      {recording.error && !recording.data ? (
        <ErrorState error={recording.error} retry={() => void recording.refetch()} />
      ) : recording.data === undefined ? (
        <Loading />
      ) : recording.data.since_ms === null ? (
        <EmptyState title={<Trans>Nothing was recorded</Trans>}>
          {mayRecord ? (
            <Trans>
              Record the messages of a topic or of a client to see what happens to each: received, rejected, evaluated
              by rules, queued, sent, acknowledged, or dropped, and why.
            </Trans>
          ) : (
            <Trans>Recording messages needs the role operator.</Trans>
          )}
        </EmptyState>
      ) : error && !steps ? (
        <ErrorState error={error} />
      ) : steps === undefined ? (
        <Loading />
      ) : shown.length === 0 ? (
        messages.length > 0 ? (
          <EmptyState title={<Trans>No message had a problem</Trans>}>
            <Trans>All recorded messages reached whom they were for.</Trans>
          </EmptyState>
        ) : (
          <EmptyState title={<Trans>No message yet</Trans>}>
            {isRunning ? (
              <Trans>Messages appear here as they are published.</Trans>
            ) : (
              <Trans>No message matched while the node recorded.</Trans>
            )}
          </EmptyState>
        )
      ) : (
        <TracedMessages messages={shown} />
      )}
    </section>
  );
}

/** What is recorded and how long, and how much of it. */
function RecordingState({ recording, messages }: { recording: Recording; messages: number }) {
  const [now, setNow] = useState(Date.now);
  const isRunning = recording.running;
  useEffect(() => {
    if (!isRunning) return undefined;
    const timer = setInterval(() => setNow(Date.now()), 1_000);
    return () => clearInterval(timer);
  }, [isRunning]);
  const left = Math.max(0, Math.ceil(((recording.until_ms ?? 0) - now) / 1000));
  return (
    <div className="row wrap trace-state" role="status">
      {recording.running ? (
        <StateBadge health="good">
          <Trans>recording for {left} s more</Trans>
        </StateBadge>
      ) : (
        <span className="dimmed">
          <Trans>Recorded until {formatTime(recording.until_ms ?? 0)}</Trans>
        </span>
      )}
      {recording.topic_filter === null ? (
        <span>
          <Trans>all topics</Trans>
        </span>
      ) : (
        <span className="mono">{recording.topic_filter}</span>
      )}
      {recording.client_id !== null && (
        <span>
          <Trans>of {recording.client_id}</Trans>
        </span>
      )}
      <span className="dimmed">
        <Plural value={messages} one="# message" other="# messages" />
      </span>
      {recording.skipped > 0 && (
        <span className="state-warning">
          <Trans>{formatNumber(recording.skipped)} steps were left out: more than 2,000 per second</Trans>
        </span>
      )}
    </div>
  );
}

interface TracedRow {
  message: TracedMessage;
  outcome: TraceOutcome;
}

/** Opening a message holds the list, so that it stays where it is; closing it shows what has arrived since. */
function TracedMessages({ messages: arrived }: { messages: TracedRow[] }) {
  const [open, setOpen] = useState<string | null>(null);
  const [held, setHeld] = useState<TracedRow[] | null>(null);
  const messages = held ?? arrived;
  return (
    <MessageRows
      rows={messages}
      rowHeight={rowHeight}
      message={({ message }) => message}
      isOpen={({ message }) => open === message.id}
      onToggle={({ message }) => {
        const isOpen = open === message.id;
        setOpen(isOpen ? null : message.id);
        setHeld(isOpen ? null : messages);
      }}
      head={({ message, outcome }) => (
        <>
          <span className="dimmed trace-publisher">{message.publisher ?? <Trans>the node</Trans>}</span>
          <span className="live-preview">
            <Outcome outcome={outcome} />
          </span>
        </>
      )}
      detail={({ message }) => <Steps message={message} />}
    />
  );
}

function Outcome({ outcome }: { outcome: TraceOutcome }) {
  const { isDenied, dropped, sent, queued, droppedForSome, rules } = outcome;
  const parts: ReactNode[] = [];
  if (sent > 0) parts.push(<Plural value={sent} one="sent to # client" other="sent to # clients" />);
  if (queued > 0) parts.push(<Plural value={queued} one="queued for # client" other="queued for # clients" />);
  if (rules.length > 0) parts.push(<Plural value={rules.length} one="# rule" other="# rules" />);
  return (
    <span className="row wrap">
      {isDenied ? (
        <StateBadge health="critical">
          <Trans>denied</Trans>
        </StateBadge>
      ) : dropped !== null ? (
        <StateBadge health={rules.length > 0 ? 'unknown' : 'warning'}>
          <DropReason reason={dropped} />
        </StateBadge>
      ) : droppedForSome > 0 ? (
        <StateBadge health="warning">
          <Plural value={droppedForSome} one="dropped for # client" other="dropped for # clients" />
        </StateBadge>
      ) : null}
      {parts.map((part, index) => (
        <span key={index}>{part}</span>
      ))}
    </span>
  );
}

/** Why a message was dropped, see `DropReason` of the node. */
function DropReason({ reason }: { reason: string }) {
  switch (reason) {
    case 'no_subscribers':
      return <Trans>nobody subscribes to the topic</Trans>;
    case 'queue_full':
      return <Trans>the queue of the session is full</Trans>;
    case 'expired':
      return <Trans>the message has expired</Trans>;
    case 'too_large':
      return <Trans>larger than the client accepts</Trans>;
    case 'no_local':
      return <Trans>the subscriber published it itself</Trans>;
    case 'not_authorized':
      return <Trans>not permitted</Trans>;
    case 'session_ended':
      return <Trans>the session has ended</Trans>;
    case 'offline':
      return <Trans>QoS 0, and the client is not connected</Trans>;
    default:
      return <>{reason}</>;
  }
}

function Client({ id }: { id: string | null }) {
  return id === null ? (
    <Trans>the node</Trans>
  ) : (
    <Link href={clientHref(id)} className="link mono">
      {id}
    </Link>
  );
}

/** The steps of one message in order, with the time since the first one. */
function Steps({ message }: { message: TracedMessage }) {
  return (
    <>
      <ol className="plain-list trace-steps">
        {message.steps.map((step) => (
          <li key={step.number}>
            <span className="dimmed mono right">+{formatNumber(step.at_ms - message.atMs)} ms</span>
            <span>
              <Step step={step} />
            </span>
          </li>
        ))}
      </ol>
      <span className="dimmed">
        <Trans>Message {message.id}</Trans>, {formatTime(message.atMs)}
      </span>
    </>
  );
}

function Step({ step }: { step: TraceStep }) {
  switch (step.step) {
    case 'received':
      return (
        <Trans>
          received from <Client id={step.publisher} />, QoS {step.qos}, {formatBytes(step.payload_bytes ?? 0)}
        </Trans>
      );
    case 'denied':
      return (
        <StateBadge health="critical">
          <Trans>
            denied to <Client id={step.publisher} />
          </Trans>{' '}
          <Link
            href={withQuery('/access/mqtt', { tab: 'check', client: step.publisher, topic: step.topic })}
            className="link"
          >
            <Trans>Why?</Trans>
          </Link>
        </StateBadge>
      );
    case 'rules':
      return (
        <>
          <Trans>evaluated by</Trans>{' '}
          {step.rules.map((rule) => (
            <Link key={rule} href={`/rules/${encodeURIComponent(rule)}`} className="link separated">
              {rule}
            </Link>
          ))}
        </>
      );
    case 'queued':
      return (
        <Trans>
          queued for <Client id={step.subscriber} />, which is not connected
        </Trans>
      );
    case 'sent':
      return (
        <Trans>
          sent to <Client id={step.subscriber} />, QoS {step.qos}
        </Trans>
      );
    case 'acknowledged':
      return (
        <Trans>
          acknowledged by <Client id={step.subscriber} /> ({(step.acknowledgement ?? '').toUpperCase()})
        </Trans>
      );
    case 'dropped':
      return (
        <StateBadge health="warning">
          {step.subscriber === null ? (
            <Trans>
              dropped: <DropReason reason={step.reason ?? ''} />
            </Trans>
          ) : (
            <Trans>
              dropped for <Client id={step.subscriber} />: <DropReason reason={step.reason ?? ''} />
            </Trans>
          )}
        </StateBadge>
      );
    default:
      return <>{step.step}</>;
  }
}
