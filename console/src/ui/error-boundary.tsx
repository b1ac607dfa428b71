import { Component, type ReactNode } from 'react';
import { ErrorState } from './states';

interface Props {
  children: ReactNode;
}

/** Keeps the frame of the console usable when a page fails. */
export class ErrorBoundary extends Component<Props, { error: Error | null }> {
  override state = { error: null as Error | null };

  static getDerivedStateFromError(error: Error) {
    return { error };
  }

  override render() {
    const { error } = this.state;
    if (error === null) return this.props.children;
    return <ErrorState error={error} retry={() => this.setState({ error: null })} />;
  }
}
