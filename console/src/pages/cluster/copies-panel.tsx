import { Text, Title } from '@mantine/core';
import { Trans } from '@lingui/react/macro';
import type { ReactNode } from 'react';
import { Facts, Panel } from '../../ui/page';
import { Problem } from './problem';

type Rows = [ReactNode, ReactNode][];

interface CopiesPanelProps {
  title: ReactNode;
  /** The copy of what this node has. */
  facts: Rows;
  /** What the state of that copy means. */
  hint: ReactNode;
  lastError: string | null;
  keptTitle: ReactNode;
  /** The copies that this node keeps, by node. */
  kept: Rows;
  nothingKept: ReactNode;
}

/** The copy at another node, and the copies that this node keeps for others. */
export function CopiesPanel({ title, facts, hint, lastError, keptTitle, kept, nothingKept }: CopiesPanelProps) {
  return (
    <Panel title={title}>
      <Facts rows={facts} />
      {hint && (
        <Text size="sm" c="dimmed" mt="xs">
          {hint}
        </Text>
      )}
      {lastError && (
        <Problem>
          <Trans>Last error: {lastError}</Trans>
        </Problem>
      )}
      <Title order={3} mt="md" mb="xs">
        {keptTitle}
      </Title>
      {kept.length > 0 ? (
        <Facts rows={kept} />
      ) : (
        <Text size="sm" c="dimmed">
          {nothingKept}
        </Text>
      )}
    </Panel>
  );
}
