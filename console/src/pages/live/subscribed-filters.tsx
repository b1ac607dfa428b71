import { TextInput } from '@mantine/core';
import { useDebouncedValue } from '@mantine/hooks';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconSearch } from '@tabler/icons-react';
import { api, unwrap, usePages, type Schemas } from '../../api/client';
import { formatNumber } from '../../format';
import { DataTable, pagesOf, type Column } from '../../ui/data-table';
import { EmptyState } from '../../ui/states';
import { useUrlState } from '../../ui/url-state';
import { isTopic } from './topics';

const pageSize = 200;

/** Topic filters in use; with a topic, those that match it: who would receive a message. */
export function SubscribedFilters() {
  const { t } = useLingui();
  const [topic, setTopic] = useUrlState('topic');
  const [wanted] = useDebouncedValue(topic.trim(), 250);
  const isWrong = wanted !== '' && !isTopic(wanted);
  const list = usePages<Schemas['TopicInfo']>(
    ['topics', isWrong ? '' : wanted],
    (after, signal) =>
      unwrap(
        api.GET('/api/v1/topics', {
          params: { query: { after, limit: pageSize, ...(wanted && !isWrong ? { matches_topic: wanted } : {}) } },
          signal,
        }),
      ),
    { every: 5_000 },
  );
  const columns: Column<Schemas['TopicInfo']>[] = [
    { id: 'filter', header: t`Topic filter`, cell: (row) => <span className="mono">{row.topic_filter}</span> },
    { id: 'subscribers', header: t`Subscribers`, align: 'right', cell: (row) => formatNumber(row.subscribers) },
    { id: 'shards', header: t`Shards`, cell: (row) => row.shards.join(', '), isHidden: true },
  ];
  return (
    <DataTable
      name="filters"
      label={t`Subscribed filters`}
      columns={columns}
      rowKey={(row) => row.topic_filter}
      {...pagesOf(list)}
      height="calc(100dvh - 300px)"
      toolbar={
        <TextInput
          aria-label={t`Topic`}
          placeholder={t`Who receives this topic?`}
          classNames={{ input: 'mono' }}
          leftSection={<IconSearch size={14} />}
          value={topic}
          error={isWrong ? t`a topic has no + and no #` : false}
          onChange={(event) => setTopic(event.currentTarget.value)}
          w={260}
        />
      }
      empty={
        wanted ? (
          <EmptyState title={<Trans>Nobody subscribes to this topic</Trans>}>
            <Trans>A message with this topic is dropped, unless a rule uses it or it is retained.</Trans>
          </EmptyState>
        ) : (
          <EmptyState title={<Trans>No subscriptions</Trans>}>
            <Trans>Topic filters appear here as soon as a client subscribes.</Trans>
          </EmptyState>
        )
      }
    />
  );
}
