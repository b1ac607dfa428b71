import { Button, Text, TextInput } from '@mantine/core';
import { useDebouncedValue } from '@mantine/hooks';
import { Plural, Trans, useLingui } from '@lingui/react/macro';
import { IconChevronDown, IconChevronRight, IconSearch } from '@tabler/icons-react';
import { useState } from 'react';
import { Link } from 'wouter';
import { api, unwrap, usePages, useRead } from '../../api/client';
import { send, withQuery } from '../../api/objects';
import { formatBytes, formatCompact } from '../../format';
import { Facts } from '../../ui/page';
import { EmptyState, ErrorState, Loading } from '../../ui/states';
import { quoted, ShowCall } from '../../ui/show-call';
import { Ago } from '../../ui/time';
import { useUrlState } from '../../ui/url-state';
import { clientHref } from '../clients/client-href';

interface TopicNode {
  name: string;
  topic: string;
  topics: number;
  has_children: boolean;
  messages: number;
  bytes: number;
  messages_per_s: number;
  last_at_ms: number | null;
  last: { payload: string; is_truncated: boolean; publisher?: string | null } | null;
}

interface TopicPage {
  data: TopicNode[];
  next: string | null;
  skipped?: number;
  is_full?: boolean;
}

const path = '/api/v1/published-topics';
const refreshMs = 3_000;
const pageSize = 100;
const indentPx = 18;
const maxSubscribers = 50;

/** Topics that were published while somebody looked, level by level, with their last values. */
export function TopicTree({ onWatch }: { onWatch: (filter: string) => void }) {
  const { t } = useLingui();
  const [search, setSearch] = useUrlState('contains');
  const [wanted] = useDebouncedValue(search.trim(), 250);
  return (
    <section className="panel">
      <div className="table-toolbar wrap">
        <TextInput
          aria-label={t`Part of a topic`}
          placeholder={t`Part of a topic`}
          leftSection={<IconSearch size={14} />}
          value={search}
          onChange={(event) => setSearch(event.currentTarget.value)}
          w={260}
        />
        <ShowCall
          method="GET"
          path={withQuery(path, { contains: wanted })}
          ctl={wanted === '' ? 'published-topics' : `published-topics --contains ${quoted(wanted)}`}
        />
        <Text size="xs" c="dimmed">
          <Trans>The node records topics only while somebody looks at them, up to five minutes longer.</Trans>
        </Text>
      </div>
      <div className="topic-head dimmed" aria-hidden>
        <span className="topic-name">
          <Trans>Topic</Trans>
        </span>
        <span className="topic-value">
          <Trans>Last value</Trans>
        </span>
        <span className="topic-rate">
          <Trans>Per second</Trans>
        </span>
        <span className="topic-rate topic-optional">
          <Trans>Messages</Trans>
        </span>
        <span className="topic-rate topic-optional">
          <Trans>Bytes</Trans>
        </span>
        <span className="topic-rate topic-optional">
          <Trans>Last</Trans>
        </span>
      </div>
      <ul className="topic-tree" aria-label={t`Topics`}>
        <Level parent="" contains={wanted} depth={0} onWatch={onWatch} />
      </ul>
    </section>
  );
}

interface LevelProps {
  parent: string;
  contains: string;
  depth: number;
  onWatch: (filter: string) => void;
}

function Level({ parent, contains, depth, onWatch }: LevelProps) {
  const list = usePages<TopicNode>(
    ['published-topics', parent, contains],
    (after, signal) =>
      send<TopicPage>('GET', withQuery(path, { parent, contains, limit: pageSize, after }), { signal }),
    { every: refreshMs },
  );
  if (list.error && !list.rows) {
    return (
      <li>
        <ErrorState error={list.error} retry={() => void list.refetch()} />
      </li>
    );
  }
  if (!list.rows) {
    return (
      <li>
        <Loading lines={depth === 0 ? 6 : 2} />
      </li>
    );
  }
  if (list.rows.length === 0 && depth === 0) {
    return (
      <li>
        {contains ? (
          <EmptyState title={<Trans>No topic matches</Trans>}>
            <Trans>Change the search.</Trans>
          </EmptyState>
        ) : (
          <EmptyState title={<Trans>No message yet</Trans>}>
            <Trans>Topics appear here with the next message that is published to them.</Trans>
          </EmptyState>
        )}
      </li>
    );
  }
  const { skipped = 0, is_full = false } = (list.data?.pages[0] ?? {}) as Partial<TopicPage>;
  return (
    <>
      {depth === 0 && is_full && (
        <li className="topic-note">
          <Trans>
            There are too many topics. The node records no further ones; those that are shown are still counted.
          </Trans>
        </li>
      )}
      {depth === 0 && skipped > 0 && (
        <li className="topic-note">
          <Plural
            value={skipped}
            one="# message is not counted: there were too many at a time, or its topic is not recorded."
            other="# messages are not counted: there were too many at a time, or their topics are not recorded."
          />
        </li>
      )}
      {list.rows.map((node) => (
        <Topic key={node.topic} node={node} contains={contains} depth={depth} onWatch={onWatch} />
      ))}
      {list.hasNextPage && (
        <li style={{ paddingLeft: 12 + depth * indentPx }}>
          <Button
            variant="subtle"
            size="compact-xs"
            loading={list.isFetchingNextPage}
            onClick={() => void list.fetchNextPage()}
          >
            <Trans>Show more</Trans>
          </Button>
        </li>
      )}
    </>
  );
}

function Topic({
  node,
  contains,
  depth,
  onWatch,
}: {
  node: TopicNode;
  contains: string;
  depth: number;
  onWatch: (filter: string) => void;
}) {
  const { t } = useLingui();
  const [isOpen, setOpen] = useState(false);
  const Chevron = isOpen ? IconChevronDown : IconChevronRight;
  return (
    <li>
      <div className="topic-row">
        <span className="topic-name" style={{ paddingLeft: depth * indentPx }}>
          <button
            type="button"
            className="topic-toggle"
            aria-expanded={isOpen}
            aria-label={isOpen ? t`Close ${node.topic}` : t`Open ${node.topic}`}
            onClick={() => setOpen(!isOpen)}
          >
            <Chevron size={14} />
          </button>
          <button
            type="button"
            className="text-button mono"
            title={t`Show the messages of ${node.topic}`}
            onClick={() => onWatch(node.has_children ? `${node.topic}/#` : node.topic)}
          >
            {node.name || t`(empty)`}
          </button>
          {node.has_children && <span className="dimmed">{formatCompact(node.topics)}</span>}
        </span>
        <span className="topic-value mono" title={node.last?.publisher ?? undefined}>
          {node.last?.payload}
          {node.last?.is_truncated && ' …'}
        </span>
        <span className="topic-rate">{formatCompact(node.messages_per_s)}</span>
        <span className="topic-rate topic-optional">{formatCompact(node.messages)}</span>
        <span className="topic-rate topic-optional">{formatBytes(node.bytes)}</span>
        <span className="topic-rate topic-optional dimmed">
          <Ago ms={node.last_at_ms} />
        </span>
      </div>
      {isOpen && node.last && <Participants node={node} depth={depth} />}
      {isOpen && node.has_children && (
        <ul>
          <Level parent={node.topic} contains={contains} depth={depth + 1} onWatch={onWatch} />
        </ul>
      )}
    </li>
  );
}

/** Who published the last message of a topic, and who receives its messages. */
function Participants({ node, depth }: { node: TopicNode; depth: number }) {
  const list = useRead(
    ['subscribers', node.topic],
    (signal) =>
      unwrap(
        api.GET('/api/v1/subscriptions', {
          params: { query: { matches_topic: node.topic, limit: maxSubscribers } },
          signal,
        }),
      ),
    { every: refreshMs },
  );
  const clients = [...new Set((list.data?.data ?? []).map((each) => each.client_id))];
  const publisher = node.last?.publisher;
  return (
    <div className="topic-participants" style={{ paddingLeft: 24 + depth * indentPx }}>
      <Facts
        rows={[
          [<Trans>Last published by</Trans>, publisher ? <ClientLink id={publisher} /> : '–'],
          [
            <Trans>Subscribers</Trans>,
            list.data === undefined ? (
              (list.error?.message ?? '–')
            ) : clients.length === 0 ? (
              <Trans>nobody</Trans>
            ) : (
              <>
                {clients.map((id) => (
                  <ClientLink key={id} id={id} />
                ))}
                {list.data.next != null && <Trans>and more</Trans>}
              </>
            ),
          ],
        ]}
      />
    </div>
  );
}

function ClientLink({ id }: { id: string }) {
  return (
    <Link href={clientHref(id)} className="link mono separated">
      {id}
    </Link>
  );
}
