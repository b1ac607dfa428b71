import { Button, TextInput } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconDownload, IconPlayerPause, IconPlayerPlay, IconSearch, IconTrash } from '@tabler/icons-react';
import { useMemo, useState, useSyncExternalStore, type ReactNode } from 'react';
import { Link, useLocation } from 'wouter';
import { payloadText, prettyPayload, type LiveMessage } from '../../api/mqtt';
import { formatBytes, formatNumber, formatTime } from '../../format';
import { newRulePath } from '../../new-paths';
import { Copy } from '../../ui/copy';
import { download } from '../../ui/download';
import { EmptyState } from '../../ui/states';
import { asJsonLines } from './message-buffer';
import { MessageRows } from './message-rows';
import type { LiveClient } from './use-live-client';

const rowHeight = 32;
const previewLength = 300;

/** Newest first. Opening a message pauses the list, so that it stays where it is. */
export function MessageList({
  live,
  call,
  onPublishAgain,
}: {
  live: LiveClient;
  /** The same on a command line. */
  call: ReactNode;
  onPublishAgain: (message: { topic: string; payload: string; qos: number }) => void;
}) {
  const { t } = useLingui();
  const { buffer } = live;
  const { messages, received, removed, isPaused, waiting } = useSyncExternalStore(buffer.subscribe, buffer.snapshot);
  const [search, setSearch] = useState('');
  const [open, setOpen] = useState<number | null>(null);
  const wanted = search.trim().toLowerCase();
  const shown = useMemo(
    () =>
      wanted === ''
        ? messages
        : messages.filter(
            ({ topic, payload }) =>
              topic.toLowerCase().includes(wanted) || payloadText(payload)?.toLowerCase().includes(wanted),
          ),
    [messages, wanted],
  );
  return (
    <>
      <div className="table-toolbar wrap">
        <TextInput
          size="xs"
          aria-label={t`Search in topics and payloads`}
          placeholder={t`Search in topics and payloads`}
          leftSection={<IconSearch size={14} />}
          value={search}
          onChange={(event) => setSearch(event.currentTarget.value)}
          w={230}
        />
        <Button
          variant="default"
          leftSection={isPaused ? <IconPlayerPlay size={14} /> : <IconPlayerPause size={14} />}
          onClick={() => buffer.setPaused(!isPaused)}
          aria-pressed={isPaused}
        >
          {isPaused ? <Trans>Continue ({formatNumber(waiting)} new)</Trans> : <Trans>Pause</Trans>}
        </Button>
        <Button
          variant="default"
          leftSection={<IconDownload size={14} />}
          disabled={shown.length === 0}
          onClick={() => download('messages.jsonl', asJsonLines(shown, payloadText), 'application/x-ndjson')}
        >
          <Trans>Export</Trans>
        </Button>
        <Button
          variant="subtle"
          color="gray"
          leftSection={<IconTrash size={14} />}
          disabled={messages.length === 0}
          onClick={() => buffer.clear()}
        >
          <Trans>Clear</Trans>
        </Button>
        {call}
      </div>
      {shown.length === 0 ? (
        <div className="live-list">
          {wanted !== '' && messages.length > 0 ? (
            <EmptyState title={<Trans>No message matches</Trans>}>
              <Trans>Change the search.</Trans>
            </EmptyState>
          ) : live.state === 'idle' ? (
            <EmptyState title={<Trans>Not subscribed</Trans>}>
              <Trans>
                Enter a topic filter and subscribe. + stands for one level, # for all remaining ones; # alone shows
                every message.
              </Trans>
            </EmptyState>
          ) : (
            <EmptyState title={<Trans>No message yet</Trans>}>
              <Trans>Messages appear here as they are published.</Trans>
            </EmptyState>
          )}
        </div>
      ) : (
        <MessageRows
          rows={shown}
          rowHeight={rowHeight}
          message={(message) => message}
          isOpen={({ id }) => open === id}
          onToggle={({ id }) => {
            setOpen(open === id ? null : id);
            if (open !== id) buffer.setPaused(true);
          }}
          head={(message) => <MessagePreview message={message} />}
          detail={(message) => <MessageDetail message={message} onPublishAgain={onPublishAgain} />}
        />
      )}
      <div className="table-footer dimmed">
        {removed > 0 ? (
          <Trans>
            {formatNumber(received)} received; the oldest {formatNumber(removed)} are no longer shown
          </Trans>
        ) : (
          <Trans>{formatNumber(received)} received</Trans>
        )}
      </div>
    </>
  );
}

function MessagePreview({ message: { payload, retain } }: { message: LiveMessage }) {
  const preview = (payloadText(payload) ?? prettyPayload(payload)).slice(0, previewLength);
  return (
    <>
      <span className="mono live-preview">{preview}</span>
      {retain && (
        <span className="tag">
          <Trans>retained</Trans>
        </span>
      )}
      <span className="dimmed live-size">{formatBytes(payload.length)}</span>
    </>
  );
}

function MessageDetail({
  message,
  onPublishAgain,
}: {
  message: LiveMessage;
  onPublishAgain: (message: { topic: string; payload: string; qos: number }) => void;
}) {
  const { t } = useLingui();
  const [, navigate] = useLocation();
  const text = payloadText(message.payload);
  const pretty = prettyPayload(message.payload);
  return (
    <>
      <div className="row wrap dimmed">
        <span>{formatTime(message.atMs)}</span>
        <span>QoS {message.qos}</span>
        {message.contentType && <span>{message.contentType}</span>}
        <Copy value={message.topic} label={t`Copy the topic`} />
      </div>
      <div className="copy-text">
        <pre tabIndex={0}>{pretty}</pre>
        <Copy value={pretty} label={t`Copy the payload`} />
      </div>
      <div className="row wrap">
        <Button
          variant="default"
          disabled={text === null}
          onClick={() => onPublishAgain({ topic: message.topic, payload: text ?? '', qos: message.qos })}
        >
          <Trans>Publish again</Trans>
        </Button>
        <Button
          variant="default"
          disabled={text === null}
          onClick={() => navigate(newRulePath, { state: { topic: message.topic, payload: text } })}
        >
          <Trans>Write a rule for it</Trans>
        </Button>
        <Button
          component={Link}
          href={`/live?${new URLSearchParams({ tab: 'trace', trace: message.topic }).toString()}`}
          variant="default"
        >
          <Trans>What happens to it?</Trans>
        </Button>
      </div>
    </>
  );
}
