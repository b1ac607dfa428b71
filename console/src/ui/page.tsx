import { Text, Title } from '@mantine/core';
import { useDocumentTitle } from '@mantine/hooks';
import type { ReactNode } from 'react';

interface PageProps {
  title: string;
  /** Beside the title: a state, an id. */
  aside?: ReactNode;
  description?: ReactNode;
  actions?: ReactNode;
  children: ReactNode;
}

export function Page({ title, aside, description, actions, children }: PageProps) {
  useDocumentTitle(`${title} · Tidegate`);
  return (
    <div className="page">
      <header className="page-header">
        <div className="page-heading">
          <div className="row wrap">
            <Title order={1}>{title}</Title>
            {aside}
          </div>
          {description && (
            <Text c="dimmed" size="sm">
              {description}
            </Text>
          )}
        </div>
        {actions && <div className="row wrap">{actions}</div>}
      </header>
      {children}
    </div>
  );
}

/** A surface with an optional heading. */
export function Panel({
  title,
  actions,
  children,
  flush,
}: {
  title?: ReactNode;
  actions?: ReactNode;
  children: ReactNode;
  /** Without padding, for tables. */
  flush?: boolean;
}) {
  return (
    <section className="panel">
      {(title || actions) && (
        <div className="panel-header">
          {title && <Title order={2}>{title}</Title>}
          {actions && <div className="row">{actions}</div>}
        </div>
      )}
      <div className={flush ? undefined : 'panel-body'}>{children}</div>
    </section>
  );
}

/** Names and values, one per line. */
export function Facts({ rows }: { rows: [ReactNode, ReactNode][] }) {
  return (
    <dl className="facts">
      {rows.map(([name, value], index) => (
        <div key={index}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}
